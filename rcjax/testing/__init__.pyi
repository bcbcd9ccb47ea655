"""The public names: each is imported when it is first used."""

from rcjax.testing.copulas import check_copula as check_copula

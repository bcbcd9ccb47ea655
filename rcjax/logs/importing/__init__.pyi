"""The public names: each is imported when it is first used."""

from rcjax.logs.importing.evaluations import read_evaluations as read_evaluations

"""What the page of a gateway's figures says, read by the client of Prometheus."""

from prometheus_client.parser import text_string_to_metric_families


def samples(page, families=text_string_to_metric_families):
    """{(name without rcjax_, label values by name): value} of a page."""
    return {
        (sample.name.removeprefix("rcjax_"), *sorted(sample.labels.items())): sample.value
        for family in families(page.decode())
        for sample in family.samples
    }


def figures(metrics, name):
    """{label values in alphabetical order of the labels: value} of one figure; a value alone where it has one label."""
    return {
        values[0] if len(values) == 1 else values: value
        for (figure, *labels), value in samples(metrics.text()[0]).items()
        if figure == name
        for values in [tuple(value for _, value in labels)]
    }

"""What a service says of itself: the list of models, and one page for people."""

from __future__ import annotations

from html import escape
from typing import Any

from rcjax._base.version import version
from rcjax.serving.gateway.lineup import Lineup


def model_list(lineup: Lineup) -> dict[str, Any]:
    """The body of GET /v1/models: the policies, then the models that can be named too."""
    policies = [
        {"id": name, "object": "model", "created": 0, "owned_by": "rcjax", "rcjax": _description(served)}
        for name, served in lineup.policies.items()
    ]
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in lineup.models]
    return {"object": "list", "data": policies + models}


def _description(served: Any) -> dict[str, Any]:
    policy = served.policy
    return {
        "models": list(policy.models),
        "policy_hash": served.digest,
        "expected": dict(policy.expected),
    }


_LINKS = (
    ("/v1/models", "the policies and models that can be called"),
    ("/health", "whether the process lives"),
    ("/ready", "whether it takes requests"),
    ("/metrics", "figures for Prometheus"),
)


def home(lineup: Lineup, *, listed: bool) -> str:
    """The page at /: what this is, and what there is.

    Args:
        lineup: what can be called.
        listed: policies are named; not where a key is needed to see them.
    """
    policies = "".join(
        f"<li><code>{escape(name)}</code>: {escape(' → '.join(served.policy.models))}"
        f" <small>({escape(served.digest)})</small></li>"
        for name, served in lineup.policies.items()
    )
    links = "".join(f'<li><a href="{path}">{path}</a>: {what}</li>' for path, what in _LINKS)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>rcjax serve</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 1em/1.5 sans-serif; max-width: 42em; margin: 2em auto;
padding: 0 1em }} code {{ font-size: 1em }}</style>
<h1>rcjax {escape(version())}</h1>
<p>A cascade of language models behind the interface of OpenAI: chat completions, and responses without a state. A
policy asks a cheap model first, and a dearer one only where the cheap one is unsure. Applications call it as any other
model: set their base URL to this address with <code>/v1</code> behind it, and the model to the name of a policy.</p>
<h2>Policies</h2>
{f"<ul>{policies}</ul>" if listed else "<p>They are told, and answer, to those who send a key.</p>"}
<h2>Paths</h2>
<ul><li><code>POST /v1/chat/completions</code></li><li><code>POST /v1/responses</code></li>{links}</ul>
</html>
"""

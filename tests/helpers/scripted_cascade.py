"""A cascade of three models, asked through a real server on loopback that a script answers for."""

import asyncio
from dataclasses import fields

from helpers.chat_server import KEY, Response, serving, sure
from helpers.gateway_service import make_policy
from rcjax.policy import signals
from rcjax.serving.call_log import CascadeError
from rcjax.serving.cascade import Cascade, ServiceOptions

PRICES = {
    "small": {"input": 0.1, "output": 0.4},
    "middle": {"input": 0.5, "output": 1.5},
    "large": {"input": 3, "output": 15},
}


def cascade_policy(**changes):
    return make_policy(**{"prices": PRICES, **changes})


POLICY = cascade_policy()
QUICK = {"retry-after-ms": "1"}


def script(**by_model):
    """Behaviour by model: a Response, or a list of them, of which the last one stays."""
    left = {model: list(replies) if isinstance(replies, list) else [replies] for model, replies in by_model.items()}

    def behave(request, headers):
        responses = left[request["model"]]
        return responses.pop(0) if len(responses) > 1 else responses[0]

    return behave


def good(letter, logprob, usage=(100, 1)):
    return Response(sure(letter, logprob, usage))


def broken(status=500, **body):
    error = {"message": f"the prompt, quoted by the server: {KEY}", **body}
    return Response({"error": error}, status=status, headers=QUICK)


def make_cascade(policy, client, **options):
    """A cascade by its arguments and the fields of `ServiceOptions`."""
    of_service = {each.name: options.pop(each.name) for each in fields(ServiceOptions) if each.name in options}
    return Cascade(policy, client, **options, service=ServiceOptions(**of_service))


def ask(behave, messages="the prompt", *, query="q1", policy=POLICY, signal=None, times=1, asking=None, **options):
    """(results or the error of so many questions, the server), by a cascade of its own, `asking` so."""

    async def main():
        async with (
            serving(behave) as (server, client),
            make_cascade(policy, client, signal=signal or signals.Choice(), **options) as cascade,
        ):
            try:
                answers = [await cascade.ask(messages, query, **(asking or {})) for _ in range(times)]
            except CascadeError as error:
                return error, server
            return answers[0] if times == 1 else answers, server

    return asyncio.run(main())

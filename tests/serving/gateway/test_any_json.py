"""For any JSON of a client or a server, the gateway answers, or names the problem in one line."""

from helpers.chat_server import Response, sure
from helpers.gateway_service import SURE
from hypothesis import HealthCheck, given, settings, strategies as st
from openai.types.chat import completion_create_params
from tiers import examples

FIELDS = sorted({*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream", "top_k", "extra_body"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    # surrogates are refused as a whole, which has a test of its own
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.sampled_from(["policy", "large", "auto", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", ["text"], {}]) | VALUES}, optional={"text": VALUES}
)
MESSAGES = st.fixed_dictionaries(
    {"content": st.lists(PARTS, min_size=1, max_size=2) | st.text("ab é", max_size=5) | VALUES},
    optional={"role": st.sampled_from(["user", "assistant", "tool", ["user"]]), "tool_calls": VALUES, "audio": VALUES},
)
BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["policy", "large"]) | VALUES,
        "messages": st.lists(MESSAGES, min_size=1, max_size=2) | VALUES,
    },
    optional={name: VALUES for name in FIELDS if name not in ("model", "messages")},
)

often = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(reply, statuses):
    """Check that a reply is an answer, or an error in OpenAI's form that is no fault of the gateway."""
    assert reply.status in statuses
    if reply.status != 200:
        error = reply.json["error"]
        assert error["code"] != "internal_error"
        assert "\n" not in error["message"]
    elif reply.headers["content-type"] == "application/json":
        assert reply.json["choices"]
    else:
        assert reply.events[-1] == "[DONE]" or reply.events[-1]["error"]["code"] != "internal_error"


@often
@given(body=BODIES)
def test_any_json_is_a_request_or_a_client_error(service, body):
    service.server.behave = lambda *_: Response(sure("B", SURE))
    check(service.post(body), (200, 400, 404, 502))

"""Checks by themselves: what each says of a reply, what is refused before it runs, and that nothing stays behind."""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from helpers.chat_server import Response, completion
from helpers.checks_of_a_test import FUNCTIONS, PROGRAMS, expected, write_checks, write_program
from helpers.gateway_service import until
from helpers.scripted_cascade import ask, script

from rcjax._base.tokens import Price
from rcjax.policy.decisions import canonical_answer
from rcjax.policy.signals import Reply, ReplyCheck, SignalError
from rcjax.policy.signals.answers import canonical_calls
from rcjax.policy.signals.signal import record_signal, signal_from_record
from rcjax.serving import check_processes, exchange
from rcjax.serving.call_log import CallLog, Query
from rcjax.serving.check_processes import CheckPool, CheckRunner, require_runnable
from rcjax.serving.completions import read_reply
from rcjax.serving.endpoints import Endpoint
from rcjax.serving.usage import AnswerMeans

SECRET = "what nobody is to read"
ASKED = [{"role": "user", "content": SECRET}]
REPLY = Reply(("B",), finish_reason="stop")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Each is a process that imports much.
    monkeypatch.setattr(check_processes, "CheckPool", lambda name, max_processes=2: CheckPool(name, 2))
    write_checks(tmp_path)
    return tmp_path


def verdicts(names, reply=REPLY, options=None):
    """By name: the confidence, or what is said in its place; and what is said at the end, and the money.

    Checks that never end have a second, others as long as a busy machine takes.
    """
    checks, costs = CheckRunner(60.0), {}

    async def one(name):
        checks.seconds = 1.0 if name.endswith(("hangs", "wait")) else 60.0
        try:
            reading, costs[name] = await checks.read(ReplyCheck(name), ASKED, reply, options or {})
        except SignalError as problem:
            return str(problem)
        assert reading.answer == (canonical_calls(reply.tool_calls) if reply.tool_calls else reply.text)
        return math.exp(reading.logprob)

    async def ask():
        try:
            return {name: await one(name) for name in names}
        finally:
            await checks.close()

    return asyncio.run(ask()), checks.remarks(), costs


def misses(came, wanted):
    """Where what came is neither the number wanted nor begins with the text."""
    return {
        name: came[name]
        for name, value in wanted.items()
        if not (came[name].startswith(value) if isinstance(value, str) else came[name] == pytest.approx(value))
    }


def test_functions_and_programs_pass_fail_hang_break_down_flood_and_talk_nonsense(place):
    wanted = {f"python:of_a_test:{name}": outcome for name, outcome in expected(FUNCTIONS).items()}
    wanted |= {f"command:./check.py {name}": outcome for name, outcome in expected(PROGRAMS).items()}
    came, remarks, costs = verdicts(wanted)
    assert misses(came, wanted) == {}
    assert SECRET not in str(came) + str(remarks)
    assert {name for name, cost in costs.items() if cost == 0.125} == {
        "python:of_a_test:costs",
        "command:./check.py costs",
    }
    assert "check command:./check.py hangs: no confidence in 1 answer, as it timed out (1)" in remarks
    assert len(remarks) == sum(isinstance(outcome, str) for outcome in wanted.values())


@pytest.mark.parametrize(
    ("output", "cost", "estimated"),
    [
        ({"confidence": 0.5, "cost": 0.125}, 0.125, False),
        ({"confidence": None, "cost": 0.125}, 0.125, False),
        ({"confidence": 2, "cost": 0.125}, 0.125, False),
        ({"cost": 0.125}, 0.125, False),
        ({"confidence": 0.5, "cost": -1}, 0.5, True),
        (None, 0.5, True),
        ("no JSON", 0.5, True),
        (TimeoutError(), 0.5, True),
        (asyncio.CancelledError(), 0.5, True),
        (FileNotFoundError(), 0.0, False),
    ],
)
def test_a_check_without_a_verdict_is_paid(output, cost, estimated, monkeypatch):
    """It cost nothing: a judge costs what it reports, or else what earlier checks cost in the mean."""

    async def run_command(command, document, seconds, silent):
        if isinstance(output, BaseException):
            raise output
        return output.encode() if isinstance(output, str) else json.dumps(output).encode(), 0

    async def send(*request):
        return completion("B")

    async def main():
        monkeypatch.setattr(check_processes, "run_command", run_command)
        means = AnswerMeans()
        means.add_check(0.5)
        endpoint = Endpoint(None, "m", ReplyCheck("command:./judge"), {}, Price(1, 10), None)
        one = exchange.Exchange(Query("q", ASKED), "m", endpoint, means=means)
        with contextlib.suppress(asyncio.CancelledError):
            await one.run(send, send, CheckRunner(60.0))
        return one.end()

    call = asyncio.run(main())
    assert (call.cost, call.estimated) == (cost, estimated)


def test_the_document_that_a_check_gets(place):
    write_program(place / "told", "open('told.json', 'w').write(json.dumps(call)); print(1)")
    calls = ({"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}},)
    form = {"type": "json_object"}
    reply = Reply(("B",), finish_reason="tool_calls", tool_calls=calls)
    came, *_ = verdicts(["command:./told"], reply, {"response_format": form, "extra_headers": {"Authorization": "key"}})
    assert came == {"command:./told": 1.0}
    received = json.loads((place / "told.json").read_text())
    assert received == {
        "question": SECRET,
        "messages": ASKED,
        "answer": "B",
        "finish_reason": "tool_calls",
        "tool_calls": [*calls],
        "response_format": form,
        "tools": None,
        "tool_choice": None,
    }


SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["city"]}}}
HOSTILE = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "^(a+)+$"}}}
ELSEWHERE = {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/schema.json"}}}


BUILT_IN = [
    ("json", '{"city": "Paris"}', None, 1.0),
    ("json", "[1, 2", None, 0.0),
    ("json", "NaN", None, 0.0),
    ("json", "[1e999]", None, 0.0),
    ("json", "[" * 100_000, None, 0.0),
    ("json", '{"city": "Paris"}', SCHEMA, 1.0),
    ("json", '{"town": "Paris"}', SCHEMA, 0.0),
    ("json", "[]", {"type": "json_object"}, 0.0),
    ("json", '"' + "a" * 40 + 'b"', HOSTILE, "the check timed out"),
    ("json", "{}", ELSEWHERE, "the check failed: "),
    ("json", "1", {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}, "the check failed: "),
    ("regex:^(yes|no)$", "yes", None, 1.0),
    ("regex:^(yes|no)$", "perhaps", None, 0.0),
    ("length", "x", None, 1.0),
    ("length:2-", "x", None, 0.0),
    ("length:-2", "xyz", None, 0.0),
]


def test_checks_that_are_built_in():
    async def ask():
        checks, came = CheckRunner(60.0), []
        for name, text, form, _ in BUILT_IN:
            checks.seconds = 1.0 if form is HOSTILE else 60.0
            try:
                options = {"response_format": form} if form else {}
                reading, _ = await checks.read(ReplyCheck(name), ASKED, Reply((text,)), options)
                came.append(math.exp(reading.logprob))
            except SignalError as problem:
                came.append(str(problem))
        await checks.close()
        return came

    for (*what, wanted), came in zip(BUILT_IN, asyncio.run(ask()), strict=True):
        assert came.startswith(wanted) if isinstance(wanted, str) else came == wanted, what


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def called(name, arguments, number="1"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [tool("weather", city={"type": "string"}), tool("sum", of={"type": "array"}), {"type": "web_search"}]
TOOLS += [{"type": "function", "function": {"name": "now"}}, {"type": "function", "function": {"name": "bad"}}]
TOOLS[-1]["function"]["parameters"] = {"type": "nonsense"}

CALLS = [
    ([called("weather", '{"city": "Paris"}')], {}, 1.0),
    ([called("weather", '{"city": 5}')], {}, 0.0),
    ([called("weather", "{}")], {}, 0.0),
    ([called("weather", "[" * 100_000)], {}, 0.0),
    ([called("Weather", '{"city": "Paris"}')], {}, 0.0),  # another name
    ([called("now", ""), called("sum", '{"of": []}', "2")], {}, 1.0),
    ([called("now", "{}"), called("sum", '{"of": []}')], {}, 0.0),  # of one id: nobody could answer both
    ([], {}, 1.0),
    ([], {"tool_choice": "required"}, 0.0),
    ([called("now", "")], {"tool_choice": "none"}, 0.0),
    ([called("now", "")], {"tool_choice": {"type": "function", "function": {"name": "sum"}}}, 0.0),
    ([called("now", "")], {"tools": []}, 0.0),
    ([called("weather", json.dumps({"city": "P" * 1_000_000}))], {}, 1.0),
    ([called("now", "")], {"tools": [*TOOLS, *(tool(f"tool{i}") for i in range(1000))]}, 1.0),
    ([called("bad", "{}")], {}, "the check failed: "),
]


def test_calls_are_held_to_the_tools_of_the_request():
    async def ask():
        checks, came = CheckRunner(60.0), []
        for calls, options, _ in CALLS:
            try:
                reply = Reply(("",), tool_calls=tuple(calls))
                reading, _ = await checks.read(ReplyCheck("call"), ASKED, reply, {"tools": TOOLS} | options)
                came.append(math.exp(reading.logprob))
                key = canonical_answer(reading.answer, "text")
                assert key == (canonical_calls(calls) if came[-1] else None)  # what is invalid agrees with nothing
            except SignalError as problem:
                came.append(str(problem))
        await checks.close()
        return came

    for (*what, wanted), came in zip(CALLS, asyncio.run(ask()), strict=True):
        assert came.startswith(wanted) if isinstance(wanted, str) else came == wanted, str(what)[:200]


def test_a_check_of_the_users_own_gives_the_key_of_an_answer(place):
    (place / "keyed.py").write_text("def key(call):\n    return {'confidence': 0.5, 'key': call['answer'].lower()}\n")

    async def ask():
        checks = CheckRunner(60.0)
        reading, _ = await checks.read(ReplyCheck("python:keyed:key"), ASKED, Reply(("PARIS",)), {})
        await checks.close()
        return reading

    assert asyncio.run(ask()).answer == "paris"


def test_a_reply_that_was_cut_short_is_not_long_enough():
    assert verdicts(["length"], Reply(("x",), finish_reason="length"))[0] == {"length": 0.0}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("python:no_such_module:f", "there is no module no_such_module"),
        ("python:of_a_test:no_such", "the module of_a_test has no function no_such"),
        ("python:breaks:f", "the module breaks fails as it is imported: ZeroDivisionError in breaks.py, line 1"),
        ("python:lacks:f", "there is no module no_such_library"),
        ("command:./no_such", "there is no program ./no_such that can be run"),
        ("command:./plain.txt", "there is no program ./plain.txt that can be run"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_line(place, name, says):
    (place / "breaks.py").write_text("1 / 0\n")
    (place / "lacks.py").write_text("import no_such_library\n")
    (place / "plain.txt").write_text("no program\n")
    with pytest.raises(ValueError, match=r"^[^\n]*$") as problem:
        require_runnable([ReplyCheck(name)])
    assert says in str(problem.value)
    assert name in str(problem.value)


def test_a_path_with_a_space_is_quoted_and_no_record_starts_code(place):
    quoted = write_program(place / "with space", "print(1)")
    checks = [ReplyCheck(name) for name in (f"command:'{quoted}'", "python:of_a_test:passes", "json")]
    require_runnable(checks)
    assert [signal_from_record(record_signal(check)) for check in checks] == [None, None, ReplyCheck("json")]


def test_a_process_that_becomes_another_program_is_found(monkeypatch):
    """Its environment is empty for a moment, and it has left the session."""
    real, seen = Path.read_bytes, []

    def read_bytes(path):
        if path == Path("/proc", str(child.pid), "environ") and not seen:
            seen.append(path)
            return b""
        return real(path)

    marked = os.environ | {check_processes._MARK_VARIABLE: uuid.uuid4().hex}
    child = subprocess.Popen(["sleep", "77"], start_new_session=True, env=marked)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    try:
        check_processes.end_session(2**30, marked[check_processes._MARK_VARIABLE], started_now=True)
        assert child.wait(120) == -signal.SIGKILL
    finally:
        child.kill()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the system has no /proc")
def test_processes_older_than_a_command_are_not_read_unless_ids_began_again(monkeypatch):
    """On a machine of a thousand processes, each check took tens of milliseconds."""
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or b"A=1")
    for newest, reads in ((2**30, False), (1, True)):
        monkeypatch.setattr(Path, "read_text", lambda path, encoding, newest=newest: f"0.1 0.1 0.1 1/80 {newest}")
        check_processes.end_session(2**30, "mark", started_now=True)
        assert bool(read) == reads


def test_nothing_stays_behind_and_no_shell_reads_the_command(place):
    nap = f"77.{os.getpid()}"  # by which these processes are known, as others may run this test, too
    holds = f"import os, time\nif not os.fork():\n    time.sleep({nap})\nprint(1)"  # the output, as the child has it
    write_program(place / "forks", holds)
    sleeps = {"starts": "return 1", "starts_and_hangs": "time.sleep(600)", "starts_and_dies": "os.kill(os.getpid(), 9)"}
    with open(place / "of_a_test.py", "a") as file:
        for name, end in sleeps.items():
            file.write(
                f"def {name}(call):\n    subprocess.Popen(['setsid', 'timeout', '99', 'sleep', '{nap}'])\n    {end}\n"
            )
    functions = [f"python:of_a_test:{name}" for name in sleeps]
    (place / "limits").write_text(
        f"#!/bin/sh\nsetsid timeout 99 sleep {nap} &\ntimeout 99 sleep {nap} &\necho 1.0000000000001\n$1\n"
    )
    (place / "limits").chmod(0o755)
    commands = ["forks ; touch broken", "check.py hangs", "limits", "limits wait"]
    names = [*(f"command:./{command}" for command in commands), *functions]
    start = time.monotonic()
    came, *_ = verdicts(names)
    assert time.monotonic() - start < 70
    assert not (place / "broken").exists()
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert [line for line in processes.splitlines() if str(place) in line or nap in line] == []
    late, broken = "the check timed out", "the check broke down: it ended with status -9"
    wanted = [1.0, late, 1.0, late, 1.0, late, broken]
    assert misses(came, dict(zip(names, wanted, strict=True))) == {}


def test_no_process_starts_or_ends_on_the_event_loop(monkeypatch):
    """A fork takes long in a large process, and so does a look at all processes of a machine."""
    threads = {}

    def note(owner, name):
        real = getattr(owner, name)

        def noting(*args, **more):
            threads.setdefault(name, set()).add(threading.current_thread())
            return real(*args, **more)

        monkeypatch.setattr(owner, name, noting)

    for owner, name in ((subprocess, "Popen"), (check_processes._Process, "start"), (check_processes, "end_session")):
        note(owner, name)
    verdicts(["command:./check.py passes", "python:of_a_test:passes", "python:of_a_test:crashes"])
    assert {*threads} == {"Popen", "start", "end_session"}
    assert threading.main_thread() not in set.union(*threads.values())


def test_a_program_that_nobody_waits_for_is_ended(place):
    body = "import os, time\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\ntime.sleep(600)"
    program = write_program(place / "stays", body)

    async def leave():
        running = asyncio.create_task(check_processes.run_command([str(program)], b"{}", 300.0))
        await asyncio.to_thread(until, (place / "pid").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(leave())
    until(lambda: not is_running((place / "pid").read_text()))


def test_an_event_loop_does_not_wait_for_the_end_of_a_pool():
    ended, go = [], threading.Event()

    class Pool:
        def stop(self):
            assert go.wait(120.0)

        def join(self):
            ended.append(threading.current_thread())

    async def end():
        check_processes._end_pool(Pool())
        go.set()

    asyncio.run(asyncio.wait_for(end(), 120.0))
    check_processes._end_pool(Pool())
    while len(ended) < 2:
        time.sleep(0.01)
    assert threading.main_thread() in ended


def test_a_script_without_a_guard_is_not_run_again(place):
    (place / "script.py").write_text(
        "import asyncio\nfrom rcjax.serving.check_processes import CheckRunner\n"
        "from rcjax.policy.signals import ReplyCheck, Reply\n"
        "async def main():\n    checks = CheckRunner(60.0)\n"
        "    print(await checks.read(ReplyCheck('python:of_a_test:passes'), [], Reply(('B',)), {}))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=300)
    assert (done.stdout.count("Reading("), done.stderr) == (1, "")


def test_a_fault_of_a_shadow_call_stops_no_other_and_no_check_stays(place, monkeypatch):
    with open(place / "of_a_test.py", "a") as file:
        file.write("def tells(call):\n    open(f'pid-{os.getpid()}', 'w').close()\n    return 1.0\n")
    monkeypatch.setattr(exchange, "read_reply", fail_on_the_broken_one)
    replies = {"small": "B", "middle": "broken", "large": "B"}
    behave = script(**{model: Response(completion(text), delay=0.1) for model, text in replies.items()})
    with CallLog(place / "calls.jsonl") as log, pytest.raises(ZeroDivisionError):
        ask(behave, signal=ReplyCheck("python:of_a_test:tells"), log=log, shadow=1.0)
    rows = [json.loads(line) for line in (place / "calls.jsonl").read_text().splitlines()]
    errors = {row["model"]: row["error"] for row in rows}
    assert errors.pop("middle").startswith("rcjax failed: ZeroDivisionError in test_reply_checks.py, line ")
    assert errors == {"small": None, "large": None}
    pids = [path.name.removeprefix("pid-") for path in place.glob("pid-*")]
    assert pids
    until(lambda: not any(is_running(pid) for pid in pids))


def fail_on_the_broken_one(completion):
    reply = read_reply(completion)
    return reply if reply.text == "B" else 1 / 0


def is_running(pid):
    """Whether a process runs: one that has ended may wait for its parent to read how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

"""Checks that pass, fail, hang, break down, write without end and print nonsense: by what is said of each."""

import sys
import textwrap

SECRET = "what nobody is to read"

#: By name: what the function does with `call`, and what comes of it: a confidence, or what is said in its place.
FUNCTIONS = {
    "passes": ("return 'B' in call['answer']", 1.0),
    "scores": ("print('noise ' * 10_000); return 0.25", 0.25),
    "costs": ("return {'confidence': 0.5, 'cost': 0.125}", 0.5),
    "refuses": ("return False", 0.0),
    "silent": ("return None", "the check gave nothing"),
    "fails": ("raise ValueError(call['question'])", "the check failed: ValueError in of_a_test.py, line "),
    "leaves": ("sys.exit(call['question'])", "the check failed: SystemExit in of_a_test.py, line "),
    "crashes": ("os.kill(os.getpid(), 11)", "the check broke down: it ended with status -11"),
    "hangs": ("time.sleep(600)", "the check timed out: no verdict within 1 seconds"),
    "floods": ("return 'x' * 10**6", "the check gave nonsense: a value that is not a number from 0 to 1"),
    "above": ("return 1.5", "the check gave nonsense: a value that is not a number from 0 to 1"),
    "none": ("return float('nan')", "the check gave nonsense: a value that is not a number from 0 to 1"),
    "odd": ("return {'confidence': 0.5, 'cost': -1}", "the check gave nonsense: a cost that is not a sum of money"),
}

#: The same of what a program does.
PROGRAMS = {
    "passes": ("print(1 if 'B' in call['answer'] else 0)", 1.0),
    "scores": ("print('0.25')", 0.25),
    "costs": ("print(json.dumps({'confidence': 0.5, 'cost': 0.125}))", 0.5),
    "refuses": ("print('false')", 0.0),
    "silent": ("pass", "the check gave nothing"),
    "fails": ("sys.exit(3)", "the check failed: it ended with status 3"),
    "raises": ("raise ValueError(call['question'])", "the check failed: it ended with status 1"),
    "crashes": ("os.kill(os.getpid(), 11)", "the check broke down: it ended with status -11"),
    "hangs": ("subprocess.run(['sleep', '600'])", "the check timed out: no verdict within 1 seconds"),
    "floods": ("while True: print('0.5')", "the check gave nonsense: it printed more than 64 KB"),
    "prose": ("print('fine, ' + call['question'])", "the check gave nonsense: what it printed is no JSON"),
    "above": ("print(2)", "the check gave nonsense: a value that is not a number from 0 to 1"),
}


def write_checks(folder):
    """of_a_test.py with the functions, one of which does as a reply's first word says; check.py does as it is told."""
    head = "import json, os, subprocess, sys, time\n"
    defined = [f"def {name}(call):\n    {body}\n" for name, (body, _) in FUNCTIONS.items()]
    defined.append("def by_word(call):\n    return globals()[call['answer'].split()[0]](call)\n")
    (folder / "of_a_test.py").write_text(head + "\n".join(defined))
    done = [f"if sys.argv[1] == {name!r}:\n    {body}\n" for name, (body, _) in PROGRAMS.items()]
    path = folder / "check.py"
    path.write_text(f"#!{sys.executable} -S\n{head}call = json.load(sys.stdin)\n" + "\n".join(done))
    path.chmod(0o755)
    return path


def write_program(path, body):
    """A program in Python with the call at hand."""
    path.write_text(f"#!{sys.executable} -S\nimport json, sys\ncall = json.load(sys.stdin)\n{textwrap.dedent(body)}\n")
    path.chmod(0o755)
    return path


def expected(table):
    return {name: outcome for name, (_, outcome) in table.items()}

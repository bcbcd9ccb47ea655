"""Writes a table as RouterBench is laid out (sample_id, prompt, eval_name, and three columns of each model):
`python wide_files.py FOLDER`. Its questions are the sums of the toy server; RouterBench itself is not copied.
"""

import sys
from pathlib import Path

import pandas as pd
from toy_api import MODELS, QUESTIONS, reply_to


def main(folder: Path) -> None:
    table: dict[str, list] = {"sample_id": [], "prompt": [], "eval_name": []}
    names = {f"org/{model}": model for model in MODELS}
    columns = [f"{name}{tells}" for tells in ("", "|model_response", "|total_cost") for name in names]
    table |= {column: [] for column in columns} | {"oracle_model_to_route_to": []}
    for number, question in enumerate(QUESTIONS):
        table["sample_id"].append(f"sums.dev.{number}")
        table["prompt"].append(str([question]))
        table["eval_name"].append("sums")
        right = []
        for name, model in names.items():
            request = {"model": model, "messages": [{"role": "user", "content": question}]}
            reply = reply_to(request)
            text = reply["choices"][0]["message"]["content"]
            table[name].append(float(text == str(number + 1)))
            table[f"{name}|model_response"].append(str([text]))
            table[f"{name}|total_cost"].append((1e-6 if "small" in name else 1e-5) * reply["usage"]["total_tokens"])
            right += [name] if table[name][-1] else []
        table["oracle_model_to_route_to"].append(right[0] if right else "no_model_correct")
    frame = pd.DataFrame(table)
    frame.to_csv(folder / "table.csv", index=False)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    main(target)

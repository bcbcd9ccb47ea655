"""Writes the spans of OpenTelemetry among the files beside, from a toy server: `python otel_files.py FOLDER`.

Those that are kept were written by opentelemetry-exporter-otlp-json-file 0.66b1 and opentelemetry-sdk 1.45.2, of the
client openai 3.57.0: `messages.jsonl` from opentelemetry-instrumentation-openai 0.62.4, whose spans hold messages;
`bare.jsonl` from opentelemetry-instrumentation-openai-v2 2.3b0 with wrapt 1.17.3, whose spans hold none.
"""

import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from toy_api import MODELS, QUESTIONS, serve

INSTRUMENTATIONS = {"messages": "openai", "bare": "openai_v2"}


def main(path: Path) -> None:
    from openai import BadRequestError, OpenAI
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    path.unlink(missing_ok=True)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(FileSpanExporter(str(path)), max_export_batch_size=8))
    trace.set_tracer_provider(provider)
    name = INSTRUMENTATIONS[path.stem]
    import_module(f"opentelemetry.instrumentation.{name}").OpenAIInstrumentor().instrument()
    client = OpenAI(base_url=f"http://127.0.0.1:{serve().server_port}", api_key="none", max_retries=0)
    tracer = trace.get_tracer("application")
    for model in MODELS:
        with tracer.start_as_current_span("questions"):
            for question in [*QUESTIONS, "What is 13 + 1?"]:
                messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
                with suppress(BadRequestError):
                    client.chat.completions.create(model=model, messages=messages)
    provider.shutdown()
    packages = str(Path(import_module("openai").__file__).parents[1])  # in tracebacks
    path.write_text(path.read_text().replace(packages, "site-packages"))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if folder.suffix:
        main(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for name in INSTRUMENTATIONS:  # each in a process of its own: they wrap the same functions
            subprocess.run([sys.executable, __file__, str(folder / f"{name}.jsonl")], check=True)

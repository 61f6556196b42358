#!/usr/bin/env python3
"""Command-line client of a Quintet server: `quintet.Client` of the Python package as a command.

    .venv/bin/python tools/client.py generate --num-beams 4 phoneme quintet
    printf 'one\\ntwo\\n' | .venv/bin/python tools/client.py encode --normalize
    .venv/bin/python tools/client.py stream --target g2p.example:50051 --ca ca.pem \\
        --api-key-file key.txt phoneme

Inputs are the arguments, or the lines of standard input when there are none. Each input gives one
line of output, in order. In text output newline, carriage return, tab and backslash are written
\\n, \\r, \\t and \\\\. A failed input gives an empty line (--output json: an object with "error"),
a message on standard error, and exit code 4; the other inputs continue.

The API key is read from --api-key-file or the variable QUINTET_API_KEY, never from an argument,
which other users of the machine could read.

Exit codes: 0 done, 1 the output could not be written, 2 usage, 4 a call failed (health: not
serving), 130 interrupted.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import signal
import sys

try:
    from google.protobuf import json_format

    # If quintet-engine is not installed, import the package from the build folder.
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "build" / "python"))
    import quintet
    from quintet.options import ENGINE_NAMES, POOLINGS, VECTOR_TYPES
    from quintet.wire import pb
except ImportError as error:
    sys.exit(
        f"client: {error}: run tools/setup.sh and tools/build.sh python_package, then "
        ".venv/bin/python tools/client.py"
    )

EXIT_FAILED, EXIT_USAGE, EXIT_RPC, EXIT_INTERRUPTED = 1, 2, 4, 130


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def as_json(message) -> dict:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


# ---- Decoding options: one flag for each, generated from the message DecodingOptions ----

DECODING = [f for f in pb.DecodingOptions.DESCRIPTOR.fields if f.name in ENGINE_NAMES]
EARLY_STOPPING = {"heuristic": False, "first": True, "never": "never"}


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _id_lists(text: str) -> list[list[int]]:
    return [_ids(part) for part in text.split(";")]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number without sign, got {text!r}")
    return int(text)


def _concurrency(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not in [1, 1024]")
    return int(text)


def add_decoding_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "decoding",
        "meaning, defaults and limits: DecodingOptions in proto/quintet/v1/inference.proto",
    )
    for field in DECODING:
        flag = {"dest": f"decoding_{field.name}", "default": None}
        if field.type == field.TYPE_BOOL:
            flag.update(action=argparse.BooleanOptionalAction)
        elif field.name == "early_stopping":
            flag.update(choices=EARLY_STOPPING)
        elif field.type == field.TYPE_STRING:
            flag.update(action="append", metavar="TEXT", help="repeat the flag for several texts")
        elif field.name == "decoder_prefix":
            flag.update(metavar="TEXT")
        elif field.name == "bad_words_ids":
            flag.update(type=_id_lists, metavar="ID,ID;ID")
        elif field.is_repeated:
            flag.update(type=_ids, metavar="ID,ID")
        else:
            flag.update(type=float if field.type == field.TYPE_FLOAT else _count, metavar="N")
        group.add_argument("--" + field.name.replace("_", "-"), **flag)
    group.add_argument("--skip-special-tokens", action=argparse.BooleanOptionalAction, default=True)


def decoding_of(arguments: argparse.Namespace) -> dict:
    values = {field.name: getattr(arguments, f"decoding_{field.name}") for field in DECODING}
    if values["early_stopping"] is not None:
        values["early_stopping"] = EARLY_STOPPING[values["early_stopping"]]
    return {**values, "skip_special_tokens": arguments.skip_special_tokens}


def check_shown(arguments: argparse.Namespace) -> None:
    """Refuses what the output would not show."""
    if arguments.output == "json":
        return
    names = ("decoding_logprobs", "decoding_top_logprobs", "decoding_return_scores", "top_logprobs")
    for name in names:
        if getattr(arguments, name, None):
            flag = name.removeprefix("decoding_").replace("_", "-")
            raise ValueError(f"--{flag}: text output does not show it; use --output json")


# ---- Commands ----
#
# Each function calls the server with one input and returns the text to print. With --output json
# the response is printed instead. Only encode returns a dict for that: it has the embeddings as
# numbers, where the response has bytes.


def generate(client: quintet.Client, arguments: argparse.Namespace, line: str, **call) -> str:
    result = client.generate(line, **arguments.decoding, **call)
    return "\t".join(escaped(sequence.text) for sequence in result.sequences)


def encode(client: quintet.Client, arguments: argparse.Namespace, line: str, **call) -> str | dict:
    array = client.encode(
        line,
        pooling=arguments.pooling,
        normalize=arguments.normalize,
        vector_type=arguments.vector_type,
        **call,
    )
    if arguments.output == "text":
        return " ".join(f"{value:.9g}" for value in array.flat)
    rows = array if array.ndim == 2 else [array]
    return {"embeddings": [[float(f"{value:.9g}") for value in row] for row in rows]}


def score(client: quintet.Client, arguments: argparse.Namespace, line: str, **call) -> str:
    text, *targets = line.split("\t")
    result = client.score(
        text,
        targets,
        top_logprobs=arguments.top_logprobs,
        sliding_window=arguments.sliding_window,
        prefix_lm=arguments.prefix_lm,
        **call,
    )
    return "\t".join(f"{target.logprob:.6f}" for target in result.targets)


def classify(client: quintet.Client, arguments: argparse.Namespace, line: str, **call) -> str:
    result = client.classify(
        *line.split("\t", 1),
        top_k=arguments.top_k,
        max_answer_tokens=arguments.max_answer_tokens,
        **call,
    )
    if isinstance(result, quintet.Classification):
        best = max(result.labels, key=lambda label: label.logit)
        return f"{escaped(best.label)}\t{best.probability:.6f}"
    if isinstance(result, quintet.TokenClassification):
        return " ".join(escaped(token.label) for token in result.tokens)
    return "\t".join(escaped(answer.text) for answer in result.answers)


def tokenize(client: quintet.Client, arguments: argparse.Namespace, line: str, **call) -> str:
    return " ".join(str(token) for token in client.tokenize(line, **call).ids)


def detokenize(client: quintet.Client, arguments: argparse.Namespace, line: str, **call) -> str:
    return escaped(client.detokenize([int(word) for word in line.split()], **call))


# ---- Running them ----


def inputs_of(arguments: argparse.Namespace):
    if arguments.inputs:
        yield from arguments.inputs
    else:
        for line in sys.stdin:
            yield line.removesuffix("\n")


# Errors that concern one input: a failed call, or a line for detokenize that is no list of ids.
INPUT_ERRORS = (quintet.Error, ValueError)


def report(error: Exception) -> dict:
    """Prints the failure to standard error; returns the object for `--output json`."""
    if not isinstance(error, quintet.Error):
        error = quintet.InvalidArgumentError(str(error))
    name = f"{error.code} {error.reason}" if error.reason else error.code
    print(f"client: {name}: {error.message}", file=sys.stderr)
    if error.retry_after is not None:
        print(f"client: the server asks to try again in {error.retry_after:.2f} s", file=sys.stderr)
    return {"error": {"code": error.code, "reason": error.reason, "message": error.message}}


def write(line: str | dict) -> None:
    print(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False), flush=True)


def call_options(arguments: argparse.Namespace) -> dict:
    options = {"request_id": arguments.request_id}
    if "inputs" in arguments and arguments.command != "detokenize":
        options["add_special_tokens"] = arguments.add_special_tokens
        if arguments.command != "tokenize":
            options["truncate"] = arguments.truncate
            options["adapter"] = arguments.adapter
    return options


def run_one(client: quintet.Client, arguments: argparse.Namespace, line: str) -> str | dict:
    """What is printed for one input."""
    responses: list = []
    options = call_options(arguments)
    result = arguments.call(client, arguments, line, on_response=responses.append, **options)
    if arguments.output == "text":
        return result
    if isinstance(result, dict):
        return {**result, "info": as_json(responses[0].info)}
    return as_json(responses[0])


def run_lines(client: quintet.Client, arguments: argparse.Namespace) -> int:
    """Runs up to --concurrency calls concurrently; prints outputs in input order."""
    failed = False

    def print_first(pending: collections.deque) -> None:
        nonlocal failed
        try:
            line = pending.popleft().result()
        except INPUT_ERRORS as error:
            failed = True
            told = report(error)
            line = told if arguments.output == "json" else ""
        write(line)

    pool = concurrent.futures.ThreadPoolExecutor(arguments.concurrency)
    pending: collections.deque = collections.deque()
    try:
        for line in inputs_of(arguments):
            pending.append(pool.submit(run_one, client, arguments, line))
            if len(pending) > 2 * arguments.concurrency:
                print_first(pending)
        while pending:
            print_first(pending)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return EXIT_RPC if failed else 0


def stream_text(stream) -> None:
    """Prints the first sequence while it is generated. After the end of the stream, prints the text
    of the first sequence that no chunk contained, and the other sequences."""
    shown = ""
    for chunk in stream:
        if chunk.index == 0:
            shown += chunk.text
            print(escaped(chunk.text), end="", flush=True)
    first, *others = [sequence.text for sequence in stream.result.sequences]
    write("\t".join([escaped(first[len(shown) :]), *map(escaped, others)]))


def run_stream(client: quintet.Client, arguments: argparse.Namespace) -> int:
    exit_code = 0
    in_json = arguments.output == "json"
    options = {**arguments.decoding, **call_options(arguments)}
    if in_json:
        options["on_response"] = lambda event: write(as_json(event))
    for line in inputs_of(arguments):
        try:
            with client.stream(line, **options) as stream:
                if in_json:
                    collections.deque(stream, maxlen=0)
                else:
                    stream_text(stream)
        except INPUT_ERRORS as error:
            exit_code = EXIT_RPC
            told = report(error)
            write(told if in_json else "")
    return exit_code


def run_info(client: quintet.Client, arguments: argparse.Namespace) -> int:
    responses: list = []
    client.info(on_response=responses.append)
    value = as_json(responses[0])
    if arguments.output == "json":
        write(value)
        return 0
    limits = {f"limits.{name}": item for name, item in value.pop("limits").items()}
    for name, item in {**value, **limits}.items():
        write(f"{name}\t{' '.join(map(str, item)) if isinstance(item, list) else item}")
    return 0


def run_models(client: quintet.Client, arguments: argparse.Namespace) -> int:
    """One line per model: name, readiness, device, data type, tasks."""
    responses: list = []
    models = client.list_models(on_response=responses.append)
    for model, message in zip(models, responses[0].models, strict=True):
        ready = "ready" if model.ready else "not ready"
        columns = [model.name, ready, model.device, model.dtype, " ".join(model.tasks)]
        write(as_json(message) if arguments.output == "json" else "\t".join(map(escaped, columns)))
    return 0


def run_health(client: quintet.Client, arguments: argparse.Namespace) -> int:
    status = client.health(arguments.service)
    write({"status": status} if arguments.output == "json" else status)
    return 0 if status == "SERVING" else EXIT_RPC


# ---- Command line ----


def connection_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--target",
        default="127.0.0.1:50051",
        metavar="HOST:PORT",
        help=(
            "address of the server, HOST:PORT or a gRPC name such as dns:///HOST:PORT (default "
            "%(default)s)"
        ),
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="timeout of each call including retries (default %(default)s)",
    )
    group.add_argument(
        "--attempts",
        type=int,
        default=5,
        choices=range(1, 6),
        metavar="N",
        help=(
            "maximum attempts per call: UNAVAILABLE and RESOURCE_EXHAUSTED are retried after "
            "the delay that the server requests; range [1, 5] (default %(default)s)"
        ),
    )
    group.add_argument(
        "--tls",
        action="store_true",
        help="use TLS with the system's CA certificates; implied by --ca",
    )
    group.add_argument("--ca", metavar="FILE", help="CA certificate of the server (PEM)")
    group.add_argument(
        "--cert", metavar="FILE", help="client certificate for mutual TLS (PEM); needs --key"
    )
    group.add_argument("--key", metavar="FILE", help="private key of --cert (PEM)")
    group.add_argument(
        "--server-name",
        metavar="NAME",
        help="name in the server's certificate, if it differs from --target",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="file with the API key (default: the variable QUINTET_API_KEY)",
    )
    group.add_argument(
        "--allow-plaintext",
        action="store_true",
        help="allow sending the API key to another machine without TLS",
    )
    group.add_argument("--output", choices=("text", "json"), default="text")
    group.add_argument(
        "--concurrency",
        type=_concurrency,
        default=1,
        metavar="CALLS",
        help="number of concurrent calls; range [1, 1024] (default %(default)s)",
    )
    call = parser.add_argument_group("call")
    call.add_argument("--model", help="name of the model; optional if the server has only one")
    call.add_argument(
        "--request-id",
        metavar="ID",
        help="request id of every call (default: generated by the server)",
    )
    call.add_argument("--priority", choices=("low", "normal", "high"))
    call.add_argument("--adapter", metavar="NAME", help="LoRA adapter of the model (default: none)")
    call.add_argument("--add-special-tokens", action=argparse.BooleanOptionalAction, default=True)
    call.add_argument("--truncate", action="store_true", help="truncate inputs that are too long")
    return parser


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="client.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    connection = connection_flags()

    def add(
        name: str, help_text: str, run, call=None, inputs: str | None = "TEXT"
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=help_text, description=help_text, parents=[connection]
        )
        command.set_defaults(run=run, call=call)
        if inputs:
            command.add_argument(
                "inputs",
                nargs="*",
                metavar=inputs,
                help="inputs (default: lines of standard input)",
            )
        return command

    add_decoding_flags(add("generate", "Generate text.", run_lines, generate))
    add_decoding_flags(add("stream", "Generate text and print it as it comes.", run_stream))
    command = add("encode", "Embed text.", run_lines, encode)
    command.add_argument("--pooling", choices=POOLINGS, default="auto")
    command.add_argument("--normalize", action="store_true", help="scale embeddings to unit length")
    command.add_argument("--vector-type", choices=VECTOR_TYPES, default="fp32")
    command = add(
        "score",
        "Log-likelihood of targets: INPUT<TAB>TARGET[<TAB>TARGET...].",
        run_lines,
        score,
        "LINE",
    )
    command.add_argument("--top-logprobs", type=int, default=0, metavar="N")
    command.add_argument(
        "--sliding-window",
        type=int,
        default=0,
        metavar="N",
        help="attention window in tokens (causal models only); 0 = unlimited",
    )
    command.add_argument(
        "--prefix-lm",
        action="store_true",
        help="bidirectional attention within the input (causal models only)",
    )
    command = add(
        "classify",
        "Labels of texts or tokens, or answers to QUESTION<TAB>CONTEXT.",
        run_lines,
        classify,
        "LINE",
    )
    command.add_argument("--top-k", type=int, default=1, metavar="N", help="number of answers")
    command.add_argument("--max-answer-tokens", type=int, default=30, metavar="N")
    add("tokenize", "Token ids of text.", run_lines, tokenize)
    add("detokenize", "Text of token ids, separated by blanks.", run_lines, detokenize, "IDS")
    add("info", "What the model is, and the server's limits.", run_info, inputs=None)
    add("models", "The models of the server, one a line.", run_models, inputs=None)
    command = add("health", "Whether the server serves.", run_health, inputs=None)
    command.add_argument(
        "--service",
        default="",
        help="service to check, for example quintet.v1.Inference (default: the whole server)",
    )
    return parser


def api_key(arguments: argparse.Namespace) -> str | None:
    if arguments.api_key_file:
        return pathlib.Path(arguments.api_key_file).read_text().strip()
    return os.environ.get("QUINTET_API_KEY")


def client_of(arguments: argparse.Namespace) -> quintet.Client:
    tls = None
    if arguments.tls or arguments.ca or arguments.cert:
        tls = quintet.Tls(arguments.ca, arguments.cert, arguments.key, arguments.server_name)
    return quintet.Client(
        arguments.target,
        model=arguments.model or "",
        tls=tls,
        api_key=api_key(arguments),
        timeout=arguments.timeout,
        attempts=arguments.attempts,
        priority=arguments.priority,
        allow_plaintext=arguments.allow_plaintext,
    )


def main() -> int:
    parser = build_parser()
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `client.py ... | head` ends quietly
    sys.stdin.reconfigure(
        encoding="utf-8", errors="surrogateescape"
    )  # a line that is not UTF-8 fails alone
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        check_shown(arguments)
        if "decoding_num_beams" in arguments:
            arguments.decoding = decoding_of(arguments)
        client = client_of(arguments)
    except (OSError, ValueError) as error:  # unreadable files, a key in plain text, wrong numbers
        parser.exit(EXIT_USAGE, f"client: {error}\n")
    try:
        with client:
            return arguments.run(client, arguments)
    except quintet.Error as error:
        report(error)
        return EXIT_RPC
    except OSError as error:
        print(f"client: writing standard output: {error}", file=sys.stderr)
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # buffered output would fail again at exit
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())

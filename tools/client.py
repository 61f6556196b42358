#!/usr/bin/env python3
"""Command-line client of a Quintet server, on `quintet.rpc` of the Python package.

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
    import grpc
    from google.protobuf import json_format

    # The package of the build folder, unless quintet-engine is installed.
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "build" / "python"))
    from quintet.rpc import Failure, RpcClient, Tls, vectors
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


# ---- Decoding options: one flag per field, generated from the message ----


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _id_lists(text: str) -> list[dict]:
    return [{"ids": _ids(part)} for part in text.split(";")]


def add_decoding_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "decoding",
        "meaning, defaults and limits: DecodingOptions in proto/quintet/v1/inference.proto",
    )
    for field in pb.DecodingOptions.DESCRIPTOR.fields:
        flag = {"dest": f"decoding_{field.name}", "default": None}
        if field.type == field.TYPE_BOOL:
            flag.update(action=argparse.BooleanOptionalAction)
        elif field.type == field.TYPE_ENUM:
            prefix = field.name.upper() + "_"
            names = [
                v.name.removeprefix(prefix).lower() for v in field.enum_type.values if v.number != 0
            ]
            flag.update(choices=names)
        elif field.type == field.TYPE_STRING:
            flag.update(action="append", metavar="TEXT", help="repeat the flag for several texts")
        elif field.name == "decoder_prefix":
            flag.update(metavar="TEXT")
        elif field.name == "bad_words_ids":
            flag.update(type=_id_lists, metavar="ID,ID;ID")
        elif field.is_repeated:
            flag.update(type=_ids, metavar="ID,ID")
        else:
            flag.update(type=float if field.type == field.TYPE_FLOAT else int, metavar="N")
        group.add_argument("--" + field.name.replace("_", "-"), **flag)


def decoding_of(arguments: argparse.Namespace) -> pb.DecodingOptions:
    values = {}
    for field in pb.DecodingOptions.DESCRIPTOR.fields:
        value = getattr(arguments, f"decoding_{field.name}")
        if value is None:
            continue
        if field.type == field.TYPE_ENUM:
            value = f"{field.name}_{value}".upper()
        if field.name == "decoder_prefix":
            value = {"text": value}
        values[field.name] = value
    return json_format.ParseDict(values, pb.DecodingOptions())


# ---- Commands: each maps one input to its text and JSON output ----


def generate(client: RpcClient, arguments: argparse.Namespace, line: str) -> tuple[str, dict]:
    response = client.generate(line, arguments.decoding)
    return "\t".join(escaped(sequence.text) for sequence in response.sequences), as_json(response)


def encode(client: RpcClient, arguments: argparse.Namespace, line: str) -> tuple[str, dict]:
    response = client.encode(
        [line],
        pooling=arguments.pooling.upper(),
        normalize=arguments.normalize,
        vector_type=arguments.vector_type.upper(),
    )
    rows = [[float(f"{value:.9g}") for value in row] for row in vectors(response.embeddings[0])]
    return " ".join(f"{value:.9g}" for row in rows for value in row), {
        "embeddings": rows,
        "info": as_json(response.info),
    }


def score(client: RpcClient, arguments: argparse.Namespace, line: str) -> tuple[str, dict]:
    text, *targets = line.split("\t")
    response = client.score(
        text,
        targets,
        top_logprobs=arguments.top_logprobs,
        sliding_window=arguments.sliding_window,
        prefix_lm=arguments.prefix_lm,
    )
    return "\t".join(f"{target.log_prob:.6f}" for target in response.scores), as_json(response)


def classify(client: RpcClient, arguments: argparse.Namespace, line: str) -> tuple[str, dict]:
    text, *pair = line.split("\t")
    response = client.classify(
        [text], pair, top_k=arguments.top_k, max_answer_tokens=arguments.max_answer_tokens
    )
    result = response.results[0]
    if result.labels:
        best = max(result.labels, key=lambda label: label.logit)
        shown = f"{escaped(best.label)}\t{best.probability:.6f}"
    elif result.tokens:
        shown = " ".join(escaped(token.labels[0].label) for token in result.tokens)
    else:
        shown = "\t".join(escaped(answer.text) for answer in result.answers)
    return shown, as_json(response)


def tokenize(client: RpcClient, arguments: argparse.Namespace, line: str) -> tuple[str, dict]:
    response = client.tokenize(line)
    return " ".join(str(token.id) for token in response.tokens), as_json(response)


def detokenize(client: RpcClient, arguments: argparse.Namespace, line: str) -> tuple[str, dict]:
    response = client.detokenize([int(word) for word in line.split()])
    return escaped(response.text), as_json(response)


# ---- Running them ----


def inputs_of(arguments: argparse.Namespace):
    if arguments.inputs:
        yield from arguments.inputs
    else:
        for line in sys.stdin:
            yield line.removesuffix("\n")


# Errors of one input: a failed call, or an input that cannot be converted to a message (bytes that
# are not UTF-8, an id that is not a number).
INPUT_ERRORS = (grpc.RpcError, ValueError)


def report(error: Exception) -> dict:
    """Prints the failure to standard error; returns the object for `--output json`."""
    if isinstance(error, grpc.RpcError):
        failure = Failure.of(error)
    else:
        failure = Failure(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    print(f"client: {failure}", file=sys.stderr)
    if failure.retry_after_s is not None:
        print(
            f"client: the server asks to try again in {failure.retry_after_s:.2f} s",
            file=sys.stderr,
        )
    return {
        "error": {"code": failure.code.name, "reason": failure.reason, "message": failure.message}
    }


def run_lines(client: RpcClient, arguments: argparse.Namespace) -> int:
    """Runs up to --concurrency calls concurrently; yields outputs in input order."""
    failed = False

    def print_first(pending: collections.deque) -> None:
        nonlocal failed
        try:
            text, value = pending.popleft().result()
        except INPUT_ERRORS as error:
            failed = True
            text, value = "", report(error)
        print(
            json.dumps(value, ensure_ascii=False) if arguments.output == "json" else text,
            flush=True,
        )

    pool = concurrent.futures.ThreadPoolExecutor(arguments.concurrency)
    pending: collections.deque = collections.deque()
    try:
        for line in inputs_of(arguments):
            pending.append(pool.submit(arguments.call, client, arguments, line))
            if len(pending) > 2 * arguments.concurrency:
                print_first(pending)
        while pending:
            print_first(pending)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return EXIT_RPC if failed else 0


def run_stream(client: RpcClient, arguments: argparse.Namespace) -> int:
    """Prints the first sequence while it is generated, then its rest (all of it with beams) and
    the other sequences."""
    exit_code = 0
    for line in inputs_of(arguments):
        shown = ""
        try:
            for event in client.stream(line, arguments.decoding):
                if arguments.output == "json":
                    print(json.dumps(as_json(event), ensure_ascii=False), flush=True)
                elif event.HasField("complete"):
                    texts = [sequence.text for sequence in event.complete.sequences]
                    print(
                        "\t".join([escaped(texts[0][len(shown) :]), *map(escaped, texts[1:])]),
                        flush=True,
                    )
                elif event.chunk.index == 0:
                    shown += event.chunk.text
                    print(escaped(event.chunk.text), end="", flush=True)
        except INPUT_ERRORS as error:
            exit_code = EXIT_RPC
            told = report(error)
            print(
                json.dumps(told, ensure_ascii=False) if arguments.output == "json" else "",
                flush=True,
            )
    return exit_code


def run_info(client: RpcClient, arguments: argparse.Namespace) -> int:
    value = as_json(client.info())
    if arguments.output == "json":
        print(json.dumps(value, ensure_ascii=False))
    else:
        limits = value.pop("limits")
        for name, item in {
            **value,
            **{f"limits.{key}": item for key, item in limits.items()},
        }.items():
            print(f"{name}\t{' '.join(map(str, item)) if isinstance(item, list) else item}")
    return 0


def run_models(client: RpcClient, arguments: argparse.Namespace) -> int:
    """One line per model: name, readiness, device, data type, tasks."""
    for model in client.list_models().models:
        if arguments.output == "json":
            print(json.dumps(as_json(model), ensure_ascii=False))
        else:
            ready = "ready" if model.ready else "not ready"
            columns = [model.model, ready, model.device, model.dtype, " ".join(model.tasks)]
            print("\t".join(map(escaped, columns)))
    return 0


def run_health(client: RpcClient, arguments: argparse.Namespace) -> int:
    status = client.health(arguments.service)
    print(json.dumps({"status": status}) if arguments.output == "json" else status)
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
        type=int,
        default=1,
        metavar="CALLS",
        help="number of concurrent calls (default %(default)s)",
    )
    call = parser.add_argument_group("call")
    call.add_argument("--model", help="name of the model; optional if the server has only one")
    call.add_argument(
        "--request-id",
        metavar="ID",
        help="request id of every call (default: generated by the server)",
    )
    call.add_argument("--priority", choices=("low", "normal", "high"))
    call.add_argument("--add-special-tokens", action=argparse.BooleanOptionalAction, default=None)
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
    command.add_argument("--pooling", choices=("none", "mean", "first", "last"), default="mean")
    command.add_argument("--normalize", action="store_true", help="scale embeddings to unit length")
    command.add_argument("--vector-type", choices=("fp32", "fp16", "bf16"), default="fp32")
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
    command.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="N",
        help="number of answers; 0 = the server's default",
    )
    command.add_argument("--max-answer-tokens", type=int, default=0, metavar="N")
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


def client_of(arguments: argparse.Namespace) -> RpcClient:
    tls = None
    if arguments.tls or arguments.ca or arguments.cert:
        tls = Tls(arguments.ca, arguments.cert, arguments.key, arguments.server_name)
    call = {
        "model": arguments.model,
        "request_id": arguments.request_id,
        "priority": f"PRIORITY_{arguments.priority.upper()}" if arguments.priority else None,
        "add_special_tokens": arguments.add_special_tokens,
        "truncate": arguments.truncate,
    }
    return RpcClient(
        arguments.target,
        tls=tls,
        api_key=api_key(arguments),
        timeout_s=arguments.timeout,
        attempts=arguments.attempts,
        call={name: value for name, value in call.items() if value is not None},
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
        if "decoding_num_beams" in arguments:
            arguments.decoding = decoding_of(arguments)
        client = client_of(arguments)
    except (
        OSError,
        ValueError,
        json_format.ParseError,
    ) as error:  # unreadable files, plain text to another machine, numbers out of range
        parser.exit(EXIT_USAGE, f"client: {error}\n")
    try:
        with client:
            return arguments.run(client, arguments)
    except grpc.RpcError as error:
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

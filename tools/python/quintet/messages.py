"""Converts arguments of Client and AsyncClient to request messages, and responses to results."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy

from quintet import checks, results
from quintet.errors import Error, InvalidArgumentError
from quintet.methods import Task
from quintet.options import HUGGING_FACE, Respond
from quintet.wire import health, pb

ENCODE_INPUTS = 32  # maximum number of inputs of an Encode request with pooling
REQUEST_BYTES = 1 << 20  # maximum size of the texts of a request, unless one input is longer
_EARLY_STOPPING = {
    False: pb.EARLY_STOPPING_HEURISTIC,
    True: pb.EARLY_STOPPING_FIRST,
    "never": pb.EARLY_STOPPING_NEVER,
}
_FINISH = {
    pb.FINISH_REASON_EOS: "eos",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
}
# NumPy types of the values of embeddings in responses. NumPy has no bf16: it is read as an integer,
# the upper half of an f32.
_VALUES = {
    pb.VECTOR_TYPE_FP32: "<f4",
    pb.VECTOR_TYPE_FP16: "<f2",
    pb.VECTOR_TYPE_BF16: "<u2",
}
_FIELDS = {field.name: field for field in pb.DecodingOptions.DESCRIPTOR.fields}


@dataclasses.dataclass
class Batch:
    """One request and its inputs."""

    call: Call
    request: Any
    first: int  # number of the first input
    inputs: list[Any]
    extras: list[Any] | None

    @property
    def method(self) -> str:
        return self.call.method

    @property
    def size(self) -> int:
        return len(self.inputs)

    @property
    def input_hash(self) -> str | None:
        """Value of the metadata quintet-input-hash, by which proxies can send requests with equal
        inputs to the same server: 16 hexadecimal digits of the SHA-256 of the text (UTF-8), or of
        the serialized pb.TokenIds. None if the request has several inputs."""
        if self.size != 1:
            return None
        request = self.request
        [value] = request.inputs if hasattr(request, "inputs") else [request.input]
        given = value.text.encode() or value.token_ids.SerializeToString()
        return hashlib.sha256(given).hexdigest()[:16]

    def read(self, answer: Any) -> list[Any]:
        """Converts a response to one result for each input, in input order."""
        return self.call.read(answer, self.inputs)

    def split(self) -> list[Batch]:
        """Returns the same inputs as requests of one input each."""
        return [
            self.call.batch(self.first + i, [value], self.extras and [self.extras[i]])
            for i, value in enumerate(self.inputs)
        ]


@dataclasses.dataclass
class Call:
    """Converts the inputs of one method call to requests, and the responses to results."""

    method: str
    make: Callable[[list[Any], list[Any] | None], Any]  # inputs and their extras to a request
    read: Callable[[Any, list[Any]], list[Any]]  # a response and its inputs to results
    most: int = 1  # maximum number of inputs in a request

    def batch(self, first: int, inputs: list[Any], extras: list[Any] | None) -> Batch:
        try:
            return Batch(self, self.make(inputs, extras), first, inputs, extras)
        except Error as error:
            error.index = first
            raise

    def batches(self, task: Task) -> Iterator[Batch]:
        """The requests of a task, in the order of its inputs."""
        source, others = iter(task.inputs), task.pairs()
        first, held = 0, list(itertools.islice(source, 1))
        while held:
            chunk, size = held, _bytes(held[0])
            held = []
            while len(chunk) < self.most:
                held = list(itertools.islice(source, 1))
                if not held or size + _bytes(held[0]) > REQUEST_BYTES:
                    break
                chunk, size = chunk + held, size + _bytes(held[0])
                held = []
            extras = None if others is None else others.take(len(chunk))
            yield self.batch(first, chunk, extras)
            first += len(chunk)
            held = held or list(itertools.islice(source, 1))
        if others is not None:
            others.check_end()


def _bytes(value: Any) -> int:
    """Returns the approximate size of an input in a message, in bytes."""
    return 4 * len(value) if hasattr(value, "__len__") else 0


Answered = tuple[list[Any], Any]  # the results of a request, and its response; None: it failed


def take(answered: Iterable[Answered], task: Task) -> list[Any]:
    """Returns the results of answered requests. Passes their responses to `on_response`."""
    respond = responder(task.options["on_response"])
    results_: list[Any] = []
    for results_of_one, response in answered:
        if response is not None:
            respond(response)
        results_ += results_of_one
    return results_


def collect(task: Task, values: list[Any]) -> Any:
    """Converts the results of a task to the form in which the client's method returns them."""
    return values[0] if task.one else _stack(values) if task.array else values


def _stack(rows: list[Any]) -> numpy.ndarray:
    """Returns an array [inputs, columns] f32 with one embedding per row; the row of a failed input
    is NaN."""
    width = next((len(row) for row in rows if not isinstance(row, Error)), 0)
    array = numpy.full((len(rows), width), numpy.nan, dtype=numpy.float32)
    for i, row in enumerate(rows):
        if not isinstance(row, Error):
            array[i] = row
    return array


def responder(on_response: Respond | None) -> Respond:
    """The function that is called with each response."""
    checks.function_or_none("on_response", on_response)
    return on_response or (lambda response: None)


# ---- Requests ----


def call_options(model: str, priority: str | None) -> dict[str, Any]:
    """Returns the fields of CallOptions that have the same values in all requests of a client."""
    options: dict[str, Any] = {"model": model}
    if priority is not None:
        options["priority"] = getattr(pb, f"PRIORITY_{priority.upper()}")
    return options


Options = Mapping[str, Any]


def _call(base: Options, options: Options) -> Any:
    """Returns the pb.CallOptions of a request. `base`: the fields from call_options()."""
    names = ("adapter", "add_special_tokens", "truncate", "request_id")
    given = {name: options[name] for name in names if options.get(name) is not None}
    return pb.CallOptions(**base, **given)


def call_of(base: Options, task: Task) -> Call:
    """How a task becomes requests."""
    makers = {"encode": encode, "score": score, "classify": classify}
    return makers.get(task.method, generate)(base, task)


def make_input(value: Any, where: str = "input") -> Any:
    """Converts a text or a list of token ids to a pb.Input message."""
    if isinstance(value, str):
        return pb.Input(text=checks.text(where, value))
    return pb.Input(token_ids=pb.TokenIds(ids=_ids(where, value)))


def _ids(where: str, value: Any) -> list[int]:
    checks.inputs(where, value)
    if isinstance(value, str):
        raise TypeError(f"{where}: expected a list of token ids, got str")
    ids = [checks.integer(f"{where}[{i}]", item) for i, item in enumerate(value)]
    for i, number in enumerate(ids):
        if not 0 <= number < 2**31:
            raise InvalidArgumentError(
                f"{where}[{i}]: {number} is not a token id; expected 0 to {2**31 - 1}"
            )
    return ids


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        if not hasattr(value, "__index__") or isinstance(value, bool):
            raise TypeError(f"{name}: expected a float, got {type(value).__name__}")
    return float(value)


def _value_of(name: str, value: Any) -> Any:
    """Checks an option and converts it to the value of the DecodingOptions field `name`."""
    field, name = _FIELDS[name], HUGGING_FACE.get(name, name)
    if name == "early_stopping":
        if not isinstance(value, (bool, str)) or value not in _EARLY_STOPPING:
            raise InvalidArgumentError(
                f'early_stopping: expected True, False or "never", got {value!r}'
            )
        return _EARLY_STOPPING[value]
    if name == "decoder_prefix":
        return make_input(value, name)
    if name == "bad_words_ids":
        checks.inputs(name, value)
        return [pb.TokenIds(ids=_ids(f"{name}[{i}]", ids)) for i, ids in enumerate(value)]
    if name == "stop_strings":
        texts = [value] if isinstance(value, str) else value
        checks.inputs(name, texts)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"{name}[{i}]: expected a str, got {type(text).__name__}")
        return list(texts)
    if field.is_repeated:
        return _ids(name, [value] if not isinstance(value, Iterable) else value)
    if field.type == field.TYPE_BOOL:
        return checks.flag(name, value)
    if field.type == field.TYPE_FLOAT:
        return _number(name, value)
    number = checks.integer(name, value)
    most = 2**64 if field.type == field.TYPE_UINT64 else 2**32
    if not 0 <= number < most:
        raise InvalidArgumentError(f"{name}: {number} is not in [0, {most})")
    return number


def generate(base: Options, task: Task) -> Call:
    """Returns the Call of Generate and GenerateStream."""
    given = {name: value for name, value in task.decoding.items() if value is not None}
    decoding = pb.DecodingOptions(
        skip_special_tokens=task.options["skip_special_tokens"],
        **{name: _value_of(name, value) for name, value in given.items()},
    )
    call = _call(base, task.options)

    def make(inputs: list[Any], _: list[Any] | None) -> Any:
        return pb.GenerateRequest(call=call, input=make_input(inputs[0]), decoding=decoding)

    def read(answer: Any, _: list[Any]) -> list[Any]:
        return [_generation(answer, decoding)]

    return Call("Generate", make, read)


def encode(base: Options, task: Task) -> Call:
    pooling = task.options["pooling"]
    names = ("prompt_name", "prompt")
    options = pb.EncodeOptions(
        pooling=getattr(pb, f"POOLING_{'UNSPECIFIED' if pooling == 'auto' else pooling.upper()}"),
        normalize=task.options["normalize"],
        vector_type=getattr(pb, f"VECTOR_TYPE_{task.options['vector_type'].upper()}"),
        pad_to=task.options["pad_to"],
        pad_mode=getattr(pb, f"PAD_MODE_{task.options['pad_mode'].upper()}"),
        **{name: task.options[name] for name in names if task.options[name] is not None},
    )
    call = _call(base, task.options)

    def make(inputs: list[Any], _: list[Any] | None) -> Any:
        return pb.EncodeRequest(
            call=call, inputs=[make_input(value) for value in inputs], options=options
        )

    def read(answer: Any, _: list[Any]) -> list[Any]:
        arrays = []
        for embedding in answer.embeddings:
            array = _values(embedding)
            if pooling == "none":
                array = array.reshape(embedding.rows, embedding.columns)
            arrays.append(array)
        return arrays

    return Call("Encode", make, read, most=1 if pooling == "none" else ENCODE_INPUTS)


def score(base: Options, task: Task) -> Call:
    names = ("top_logprobs", "sliding_window", "prefix_lm")
    options = {name: task.options[name] for name in names}
    call = _call(base, task.options)

    def make(inputs: list[Any], extras: list[Any] | None) -> Any:
        assert extras is not None
        targets = [extras[0]] if checks.is_one_input(extras[0]) else extras[0]
        checks.inputs("targets", targets)
        return pb.ScoreRequest(
            call=call,
            input=make_input(inputs[0]),
            targets=[make_input(value, f"targets[{i}]") for i, value in enumerate(targets)],
            **options,
        )

    def read(answer: Any, _: list[Any]) -> list[Any]:
        targets = [
            results.TargetScore(target.log_prob, _logprobs(target.logprobs))
            for target in answer.scores
        ]
        return [results.Scores(targets, _usage(answer.info))]

    return Call("Score", make, read)


def classify(base: Options, task: Task) -> Call:
    options = {name: task.options[name] for name in ("top_k", "max_answer_tokens")}
    call = _call(base, task.options)

    def make(inputs: list[Any], extras: list[Any] | None) -> Any:
        return pb.ClassifyRequest(
            call=call,
            inputs=[make_input(value) for value in inputs],
            pairs=[pb.Input(text=checks.context("contexts", value)) for value in extras or ()],
            **options,
        )

    def read(answer: Any, inputs: list[Any]) -> list[Any]:
        return [_classification(answer.results[0], answer.info, inputs[0])]

    return Call("Classify", make, read)


def tokenize(base: Options, text: Any, options: Options) -> Any:
    return pb.TokenizeRequest(call=_call(base, options), text=checks.text("text", text))


def detokenize(base: Options, token_ids: Any, options: Options) -> Any:
    if isinstance(token_ids, str):
        raise TypeError("token_ids: expected a list of token ids, got str")
    return pb.DetokenizeRequest(
        call=_call(base, options),
        token_ids=_ids("token_ids", token_ids),
        skip_special_tokens=options["skip_special_tokens"],
    )


def info(base: Mapping[str, Any]) -> Any:
    return pb.GetModelInfoRequest(model=base["model"])


def check_health(service: str) -> Any:
    return health.HealthCheckRequest(service=checks.text("service", service))


def list_models() -> Any:
    return pb.ListModelsRequest()


# ---- Responses ----


def _usage(call_info: Any) -> results.Usage:
    usage = call_info.usage
    return results.Usage(
        usage.input_tokens, usage.prefix_tokens, usage.output_tokens, usage.cached_tokens
    )


def _values(embedding: Any) -> numpy.ndarray:
    """The values of an embedding as f32."""
    values = numpy.frombuffer(embedding.values, dtype=_VALUES[embedding.vector_type])
    if embedding.vector_type == pb.VECTOR_TYPE_BF16:
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)


def read_tokens(answer: Any) -> results.Tokens:
    return results.Tokens(
        [token.id for token in answer.tokens],
        [token.piece for token in answer.tokens],
        [(token.begin_byte, token.end_byte) for token in answer.tokens],
    )


def _logprobs(tokens: Any) -> list[results.TokenLogprob]:
    return [
        results.TokenLogprob(
            token.token_id, token.log_prob, [(top.token_id, top.log_prob) for top in token.top]
        )
        for token in tokens
    ]


def _generation(answer: Any, decoding: Any) -> results.Generation:
    logprobs = decoding.logprobs or decoding.top_logprobs > 0
    sequences = [
        results.Sequence(
            sequence.text,
            list(sequence.token_ids),
            _FINISH[sequence.finish_reason],
            sequence.score if sequence.HasField("score") else None,
            _logprobs(sequence.logprobs) if logprobs else None,
            sequence.matched_stop or None,
        )
        for sequence in answer.sequences
    ]
    return results.Generation(sequences, _usage(answer.info), answer.seed or None)


def read_chunk(chunk: Any) -> results.Chunk:
    return results.Chunk(chunk.text, list(chunk.token_ids), chunk.index)


def _labels(labels: Any) -> list[results.LabelScore]:
    return [results.LabelScore(label.label, label.probability, label.logit) for label in labels]


def _classification(result: Any, call_info: Any, value: Any) -> results.ClassifyResult:
    usage = _usage(call_info)
    if result.labels:
        best = max(result.labels, key=lambda label: label.logit)
        return results.Classification(best.label, _labels(result.labels), usage)
    if result.tokens:
        text = isinstance(value, str)
        return results.TokenClassification(
            [
                results.TokenLabel(
                    token.token_id,
                    token.labels[0].label,
                    token.labels[0].probability,
                    _labels(token.labels),
                    token.begin_byte if text else None,
                    token.end_byte if text else None,
                )
                for token in result.tokens
            ],
            usage,
        )
    return results.Answers(
        [
            results.Answer(answer.text, answer.begin_byte, answer.end_byte, answer.score)
            for answer in result.answers
        ],
        usage,
    )


def read_info(answer: Any) -> results.ModelInfo:
    return results.ModelInfo(
        model=answer.model,
        family=answer.family,
        head=answer.head,
        device=answer.device,
        dtype=answer.dtype,
        cache_dtype=answer.cache_dtype,
        parameters=answer.parameters,
        vocab=answer.vocab,
        d_model=answer.d_model,
        encoder_layers=answer.encoder_layers,
        decoder_layers=answer.decoder_layers,
        labels=list(answer.labels),
        eos_token_ids=list(answer.eos_token_ids),
        max_input_tokens=answer.limits.max_input_tokens,
        max_num_seqs=answer.limits.max_running_sequences,
        prompt_names=list(answer.prompt_names),
        adapters=list(answer.adapters),
        limits=results.Limits(
            **{name: getattr(answer.limits, name) for name in results.Limits.__slots__}
        ),
    )


def read_health(answer: Any) -> str:
    return str(health.HealthCheckResponse.ServingStatus.Name(answer.status))


def read_models(answer: Any) -> list[results.ServedModel]:
    return [
        results.ServedModel(
            name=model.model,
            ready=model.ready,
            device=model.device,
            dtype=model.dtype,
            family=model.family,
            head=model.head,
            tasks=list(model.tasks),
            adapters=list(model.adapters),
            parameters=model.parameters,
            max_input_tokens=model.max_input_tokens,
            max_new_tokens=model.max_new_tokens,
        )
        for model in answer.models
    ]

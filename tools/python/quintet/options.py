"""Options of Model and Client, with Hugging Face's names and values, and their checks."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from typing import Any, Literal, TypedDict

from quintet.errors import InvalidArgumentError

POOLINGS = ("auto", "mean", "first", "last", "none")
ON_ERROR = ("raise", "return")
VECTOR_TYPES = ("fp32", "fp16", "bf16")

# Hugging Face's names of options that Quintet has under another name.
ALIASES = {
    "eos_token_id": "eos_token_ids",
    "forced_eos_token_id": "forced_eos_token_ids",
    "stop_strings": "stop",
}
# Options of transformers' generate that have another form here.
HINTS = {
    "max_length": "use max_new_tokens",
    "min_length": "use min_new_tokens",
    "output_scores": "use logprobs=True, or return_scores=True for the scores of sequences",
    "return_dict_in_generate": "results are always objects; leave it out",
    "decoder_input_ids": "use decoder_prefix, without the start token",
    "input_ids": "pass token ids as the first argument",
    "attention_mask": "inputs are not padded; leave it out",
    "batch_size": "batches are formed by the engine; leave it out",
}


class GenerationOptions(TypedDict, total=False):
    """Decoding options. For an option that is not set, or None, the model's generation_config.json
    decides."""

    max_new_tokens: int | None  # default 256; range [1, 4096]
    min_new_tokens: int | None  # default 0
    num_beams: int | None  # default 1; range [1, 32]
    num_return_sequences: int | None  # default 1; at most num_beams, or 16 samples
    length_penalty: float | None  # default 1; range [-10, 10]
    early_stopping: bool | Literal["never"] | None  # default False
    patience: float | None  # default 1; range [0.1, 4]; needs early_stopping=True
    do_sample: bool | None  # default False
    seed: int | None  # default: random; range [0, 2^64)
    temperature: float | None  # default 1; range [0.01, 100]
    top_k: int | None  # default 50; 0: no limit
    top_p: float | None  # default 1; range (0, 1]
    typical_p: float | None  # default 1; range (0, 1]
    min_p: float | None  # default 0; range [0, 1)
    repetition_penalty: float | None  # default 1; range (0, 10]
    no_repeat_ngram_size: int | None  # default 0 (off); range [0, 64]
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    eos_token_id: int | Sequence[int] | None  # default: the ids of the model
    decoder_start_token_id: int | None
    pad_token_id: int | None
    decoder_prefix: str | Sequence[int] | None  # decoder tokens after the start token
    stop_strings: str | Sequence[str] | None  # strings that end a sequence
    include_stop: bool | None  # default False: the text ends before the stop string
    ignore_eos: bool | None  # default False; for benchmarks
    logprobs: bool | None  # default False: log-probabilities of new tokens
    top_logprobs: int | None  # default 0; range [0, 20]; needs logprobs=True
    return_scores: bool | None  # default False: Sequence.score
    echo: bool | None  # default False: the prompt or prefix comes first


class CallOptions(TypedDict, total=False):
    """Arguments that the methods share; `quintet.Model` describes them."""

    add_special_tokens: bool
    truncate: bool
    timeout: float | None
    on_error: Literal["raise", "return"]
    progress: bool


class GenerateOptions(GenerationOptions, CallOptions, total=False):
    """Arguments of generate."""

    skip_special_tokens: bool


class EncodeOptions(CallOptions, total=False):
    """Arguments of encode, except pooling."""

    normalize: bool
    prompt_name: str | None
    prompt: str | None


class ScoreOptions(CallOptions, total=False):
    """Arguments of score."""

    top_logprobs: int
    sliding_window: int
    prefix_lm: bool
    target_special_tokens: bool


class ClassifyOptions(CallOptions, total=False):
    """Arguments of classify."""

    top_k: int
    max_answer_tokens: int


def decoding_options(method: str, given: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """Returns the options under the engine's names. Raises TypeError for an option that does not
    exist."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        target = ALIASES.get(name, name)
        if target not in known:
            raise TypeError(f"{method}() has no option {name!r}{_hint(name, known)}")
        if target in options:
            raise TypeError(f"{method}(): {name} is given twice, also as {_other_name(name)}")
        options[target] = value
    return options


def _other_name(name: str) -> str:
    other = {**ALIASES, **{target: alias for alias, target in ALIASES.items()}}
    return other[name]


def _hint(name: str, known: Set[str]) -> str:
    if name in HINTS:
        return f": {HINTS[name]}"
    near = difflib.get_close_matches(name, sorted({*known, *ALIASES}), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def flag(name: str, value: Any) -> bool:
    """Returns `value`, which must be a boolean. Anything else raises TypeError, because values such
    as "False" and 0.0 are mistakes."""
    if value is True or value is False:
        return value
    raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")


def integer(name: str, value: Any) -> int:
    """Returns `value` as an int. Raises TypeError if it is not an integer, or is a boolean."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        number = value.__index__()
        if abs(number) < 2**62:
            return number
        raise InvalidArgumentError(f"{name}: {number} is too large")
    raise TypeError(f"{name}: expected an int, got {type(value).__name__}")


def seconds(name: str, value: Any) -> float:
    """Checks a duration in seconds and returns it; returns 0 for None, which means no limit."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected seconds as a number or None, got {type(value).__name__}")
    if not math.isfinite(value) or not 0 < value <= 1e9:
        raise InvalidArgumentError(f"{name}: {value} is not in (0, 1e9] seconds")
    return float(value)


def prompts(prompt_name: Any, prompt: Any) -> dict[str, str]:
    """Checks encode's arguments prompt_name and prompt, and returns those that are not None, by
    name."""
    given = {"prompt_name": prompt_name, "prompt": prompt}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        if not isinstance(value, str):
            raise TypeError(f"{name}: expected a str or None, got {type(value).__name__}")
        check_text(name, value)
    return chosen


def check_text(where: str, text: str) -> None:
    """Raises InvalidArgumentError if the text cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{where}: the text contains a surrogate (U+D800 to U+DFFF), which is not a "
            'character; decode the bytes with errors="replace"'
        ) from None


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns `value`, which must be one of `choices`; otherwise raises an error."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    if value not in choices:
        raise InvalidArgumentError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
    return value


def is_one_input(value: Any) -> bool:
    """Whether a value is one input (text or token ids), not several."""
    if isinstance(value, str):
        return True
    if isinstance(value, (bytes, bytearray, Mapping, Set)) or not hasattr(value, "__len__"):
        return False
    if getattr(value, "ndim", None) is not None:
        return value.ndim == 1 and getattr(value.dtype, "kind", "") in "iu"
    if len(value) == 0 or not hasattr(value, "__getitem__"):
        return False
    first = next(iter(value), None)
    scalar = not isinstance(first, bool) and getattr(first, "ndim", 0) == 0
    return scalar and hasattr(first, "__index__")


def check_inputs(name: str, value: Any) -> None:
    """Raises TypeError if the value is neither an input nor an ordered iterable of inputs."""
    if isinstance(value, str):  # the common case; isinstance of an abstract class is slow
        return
    if isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{name}: expected str, got {type(value).__name__}; decode it first")
    if isinstance(value, (Mapping, Set)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name}: expected a str, a list of token ids, or an iterable of these, "
            f"got {type(value).__name__}"
        )


@dataclasses.dataclass
class Shape:
    """The inputs of a call, and whether its result is a single result, a list or an iterator."""

    inputs: Iterable
    extras: Iterable | None  # for each input its targets or its context
    one: bool  # a single input: the result is not in a list
    size: int | None  # number of inputs; None: an iterator


def shape_of(inputs: Any, extras: tuple[str, Any] | None) -> Shape:
    """Checks the inputs of a call. `extras`: (name, value) of the argument that has one entry for
    each input, such as targets or contexts; None if the method has no such argument."""
    check_inputs("inputs", inputs)
    one = is_one_input(inputs)
    size = 1 if one else len(inputs) if isinstance(inputs, Sized) else None
    paired = None
    if extras is not None:
        name, value = extras
        paired = [value] if one else _paired(name, value, size)
    return Shape([inputs] if one else inputs, paired, one, size)


def _paired(name: str, value: Any, size: int | None) -> Iterable:
    if isinstance(value, (str, bytes, Mapping, Set)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name}: expected one entry for each input, in a list, got {type(value).__name__}"
        )
    if size is not None and isinstance(value, Sized) and len(value) != size:
        raise InvalidArgumentError(
            f"{name}: expected {size} entries, one for each input, got {len(value)}"
        )
    return value


def progress_bar(shown: bool, size: int | None) -> Callable[[int], Any]:
    """Returns a function to call with the number of inputs that have been finished since its last
    call, or with -1 when the call has ended."""
    if not shown:
        return lambda count: None
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    bar = tqdm(total=size, unit=" inputs")
    return lambda count: bar.close() if count < 0 else bar.update(count)

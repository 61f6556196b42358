"""Methods of quintet.Model over data sets of Ray Data."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from quintet import checks
from quintet.errors import InvalidArgumentError
from quintet.ray.needs import need
from quintet.ray.work import Work, make_work
from quintet.ray.worker import Worker

if TYPE_CHECKING:
    from ray.data import Dataset

Actors = int | tuple[int, int]  # number of actors; (least, most): a pool that Ray scales
CONCURRENT_BATCHES = 2  # calls that an actor runs at a time, so that its model's batch stays full


def generate(
    dataset: Dataset,
    *,
    model: str | os.PathLike[str],
    column: str = "text",
    details: bool = False,
    actors: Actors = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    batch_size: int = 1024,
    **options: Any,
) -> Dataset:
    """Generates text for each row of a data set.

    Ray runs the actors when the result is consumed or written. It restarts actors that die and
    repeats their batches. Rows keep all their columns, keys of their order included; the order of
    the rows themselves is kept only if `dataset.context.execution_options.preserve_order` is set.

    Args:
        dataset: the rows.
        model: the argument of quintet.Model. A path must exist on every node; a path that exists
            here is made absolute.
        column: name of the column of inputs: texts or lists of token ids.
        details: also returns the column "sequences", with all fields of `quintet.Sequence`.
        actors: number of actors, or the least and the most, between which Ray scales the pool.
            Each holds one model.
        num_cpus: CPUs of an actor; also its compute threads, unless `threads` is given.
        num_gpus: GPUs of an actor; 0.5 places two on each GPU (`max_memory` bounds the GPU memory
            of each). The device is "cuda" if this is above 0, otherwise "cpu", unless `device` is
            given.
        batch_size: rows of a call of an actor. Range [1, 1e6].
        **options: those of quintet.Model and of Model.generate, except progress. With
            on_error="return" the column "error" has the code and the message of a failed row, and
            null for the others.

    Returns:
        The rows with the column "generated_text".

    Raises:
        TypeError, InvalidArgumentError: an argument is wrong, or a column is missing. Values that
            only the engine can check fail when Ray starts the actors.
    """
    work = make_work("generate", model, options, column, None, details)
    return _map(dataset, work, Pool(actors, num_cpus, num_gpus), batch_size)


def encode(
    dataset: Dataset,
    *,
    model: str | os.PathLike[str],
    column: str = "text",
    actors: Actors = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    batch_size: int = 1024,
    **options: Any,
) -> Dataset:
    """Computes the embedding of each row. Arguments and errors as those of `generate`; `options`
    are those of Model.encode.

    Returns:
        The rows with the column "embedding": a list of f32; with pooling="none" one for each token.
    """
    work = make_work("encode", model, options, column)
    return _map(dataset, work, Pool(actors, num_cpus, num_gpus), batch_size)


def score(
    dataset: Dataset,
    *,
    model: str | os.PathLike[str],
    column: str = "text",
    targets: str = "targets",
    details: bool = False,
    actors: Actors = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    batch_size: int = 1024,
    **options: Any,
) -> Dataset:
    """Computes the log-likelihood of the targets of each row. Arguments and errors as those of
    `generate`; `options` are those of Model.score.

    Args:
        targets: name of the column of targets: lists of texts or of lists of token ids.
        details: also returns the column "tokens": the log-probabilities of the tokens of each
            target.

    Returns:
        The rows with the column "logprobs": list of f64, one for each target.
    """
    work = make_work("score", model, options, column, targets, details)
    return _map(dataset, work, Pool(actors, num_cpus, num_gpus), batch_size)


def classify(
    dataset: Dataset,
    *,
    model: str | os.PathLike[str],
    column: str = "text",
    contexts: str | None = None,
    actors: Actors = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    batch_size: int = 1024,
    **options: Any,
) -> Dataset:
    """Runs the task head of the model on each row. Arguments and errors as those of `generate`;
    `options` are those of Model.classify.

    Args:
        contexts: question answering: name of the column of contexts.

    Returns:
        The rows with the columns "label" and "labels" (classification of texts), "tokens" (of
        tokens) or "answers" (question answering), with the fields of the results of
        Model.classify.
    """
    work = make_work("classify", model, options, column, contexts)
    return _map(dataset, work, Pool(actors, num_cpus, num_gpus), batch_size)


class Pool:
    """The actors of a data set: how many, and their resources."""

    def __init__(self, actors: Actors, num_cpus: float, num_gpus: float, name: str = "actors"):
        """`name`: the argument `actors` of the caller."""
        sizes = actors if isinstance(actors, tuple) else (actors, actors)
        if len(sizes) != 2:
            raise InvalidArgumentError(f"{name}: expected a number or (least, most), got {actors}")
        least, most = (checks.integer(name, size) for size in sizes)
        if not 1 <= least <= most:
            raise InvalidArgumentError(
                f"{name}: expected 1 <= least <= most, got {least} and {most}"
            )
        self.least, self.most = least, most
        self.num_cpus = _resource("num_cpus", num_cpus)
        self.num_gpus = _resource("num_gpus", num_gpus)

    def defaults(self) -> dict[str, Any]:
        """Options of quintet.Model for what Ray grants to an actor: its GPU, or no GPU; and one
        thread for each CPU."""
        device = "cuda" if self.num_gpus > 0 else "cpu"
        return {"device": device, "threads": max(1, int(self.num_cpus))}

    def placed(self, work: Work) -> Work:
        """The work with these defaults."""
        return dataclasses.replace(work, load={**self.defaults(), **work.load})

    def map(self, dataset: Dataset, worker: type, arguments: dict[str, Any], rows: int) -> Dataset:
        """Passes tables of `rows` rows to actors of the class `worker`, which are made with
        `arguments`."""
        strategy = need("ray.data").ActorPoolStrategy(
            min_size=self.least,
            max_size=self.most,
            max_tasks_in_flight_per_actor=CONCURRENT_BATCHES + 1,
            max_concurrent_calls_per_actor=CONCURRENT_BATCHES,
            enable_true_multi_threading=True,
        )
        return dataset.map_batches(
            worker,
            fn_constructor_kwargs=arguments,
            batch_size=rows,
            batch_format="pyarrow",
            compute=strategy,
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
        )


def _resource(name: str, value: Any) -> float:
    value = checks.plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if not 0 <= value <= 4096:
        raise InvalidArgumentError(f"{name}: {value} is not in [0, 4096]")
    return float(value)


def _map(dataset: Dataset, work: Work, pool: Pool, batch_size: int) -> Dataset:
    rows = checks.in_range(1, 1_000_000)("batch_size", batch_size)
    names = dataset.columns(fetch_if_missing=False)  # None: not known before it runs
    if names is not None:
        work.check_columns(names)
    return pool.map(dataset, Worker, {"work": pool.placed(work)}, rows)

#!/usr/bin/env python3
"""Compares a checkpoint in Quintet with the same checkpoint in transformers, and writes a report.

    tools/verify_model.py google/flan-t5-small            # a hub id; downloaded if it is not cached
    tools/verify_model.py DIRECTORY --report report.md

Needs torch and transformers (sentence-transformers for directories with modules.json,
huggingface_hub to download), and a built quintet. transformers runs in f32, Quintet with the weight
type of --dtype (default f32). The script compares token ids, log-probabilities of given targets,
greedy and beam search, hidden states, embeddings, labels of texts and of tokens, and answers to
questions. The report is Markdown. Exit code 0: everything agrees; 1: something differs; 2: the
model could not be compared.
"""

import argparse
import json
import pathlib
import platform
import subprocess
import sys
from dataclasses import dataclass, field

SOURCE = pathlib.Path(__file__).resolve().parents[1]
TEXTS = [
    "translate English to German: The house is wonderful.",
    "summarize: The tower is 324 metres tall, about the same height as an 81-storey building.",
    "Does 3 + 4 equal 7? Answer yes or no.",
    "Ünïcödé — “quotes”, naïve café, 東京, Москва, 🙂",
    "a",
    "  several   spaces\tand a tab ",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "</s> <extra_id_0> and <pad> inside the text",
]
# For LongT5: longer than twice the published models' local_radius.
LONG_TEXT = " ".join(f"Sentence {i}: {TEXTS[i % 3]}" for i in range(40))
QUESTION = "How tall is the tower?"
MAX_ANSWER_TOKENS = 15
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*/config.json", "*/model.safetensors"]
NEW_TOKENS = 32


class CannotVerify(Exception):
    """Raised if the model cannot be compared. The message says why."""


@dataclass
class Row:
    """One line of the report."""

    check: str
    compared: str
    difference: str
    tolerance: str
    passed: bool
    notes: list[str] = field(default_factory=list)


class Quintet:
    """Runs subcommands of the quintet binary on one model."""

    def __init__(self, binary: str, model: str, dtype: str, device: str):
        self._binary, self._model = binary, model
        self._flags = ["--dtype", dtype, "--device", device, "--quiet"]

    def run(self, command: str, lines: list[dict], *flags: str) -> list[dict]:
        given = "".join(json.dumps(line) + "\n" for line in lines)
        done = subprocess.run(
            [self._binary, command, "--model", self._model, "--input", "json", "--output", "json"]
            + [*self._flags, *flags],
            input=given.encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise CannotVerify(done.stderr.decode(errors="replace").strip()[-2000:])
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def inspect(self) -> dict:
        done = subprocess.run(
            [self._binary, "inspect", self._model, "--output", "json"],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise CannotVerify(done.stderr.decode(errors="replace").strip())
        return json.loads(done.stdout)

    def version(self) -> str:
        done = subprocess.run([self._binary, "--version"], capture_output=True, check=True)
        return done.stdout.decode().splitlines()[0]


def directory_of(model: str) -> str:
    """Returns the directory of a model. A hub id is first downloaded into the Hugging Face
    cache."""
    if pathlib.Path(model).is_dir():
        return model
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CannotVerify(f"{model}: no such directory, and huggingface_hub is absent") from error
    repository, _, revision = model.partition("@")
    try:
        return snapshot_download(repository, revision=revision or None, allow_patterns=FILES)
    except Exception as error:  # the library has many: no network, no such repository, gated, ...
        raise CannotVerify(f"{model}: cannot be downloaded: {error}") from error


def compare_states(torch, name: str, ours, theirs, tolerance: float) -> Row:
    """Compares two lists of arrays. The difference is the largest absolute difference divided by
    the largest absolute reference value."""
    worst, scale, shapes = 0.0, 1e-30, True
    for mine, reference in zip(ours, theirs, strict=True):
        mine = torch.tensor(mine)
        if mine.shape != reference.shape:
            shapes = False
            continue
        worst = max(worst, (mine - reference).abs().max().item())
        scale = max(scale, reference.abs().max().item())
    error = worst / scale if shapes else float("inf")
    return Row(name, f"{len(ours)} inputs", f"{error:.1e}", f"{tolerance:.0e}", error <= tolerance)


class Comparison:
    """Compares Quintet's outputs for a checkpoint with those of transformers. The head of the model
    (language model, sequence classification, ...) determines which checks run. Each check appends
    a Row to `rows`."""

    def __init__(self, directory: str, quintet: Quintet, tolerance: float):
        import torch
        import transformers

        self.torch, self.transformers = torch, transformers
        self.directory, self.quintet, self.tolerance = directory, quintet, tolerance
        self.config = quintet.inspect()["config"]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        texts = [*TEXTS, LONG_TEXT] if self.config["local_radius"] > 0 else TEXTS
        self.texts = [text for text in texts if self.fits(self.tokenizer(text)["input_ids"])]
        self.rows: list[Row] = []

    def model(self, auto: str):
        classes = getattr(self.transformers, auto)
        loaded = classes.from_pretrained(self.directory, dtype=self.torch.float32)
        return loaded.eval()

    def fits(self, ids: list[int]) -> bool:
        """Returns whether the checkpoint has embeddings for all of these ids (some tokenizers have
        more ids than the model) and, if it has position embeddings, enough of them for these ids
        and NEW_TOKENS generated tokens."""
        if self.config["positions"] == "learned":
            config = self.transformers.AutoConfig.from_pretrained(self.directory)
            if len(ids) + NEW_TOKENS > config.max_position_embeddings:
                return False
        return max(ids, default=0) < self.config["vocab"]

    def ids(self, text: str):
        return self.torch.tensor([self.tokenizer(text)["input_ids"]])

    def run(self) -> list[Row]:
        with self.torch.inference_mode():
            head = self.config["head"]
            if head == "language model":
                causal = self.config["encoder_layers"] == 0
                model = self.model("AutoModelForCausalLM" if causal else "AutoModelForSeq2SeqLM")
                texts = [text for text in self.texts if not causal or text.strip()]
                targets = self.generate(model, texts)
                self.token_ids(texts)
                self.score(model, texts, targets)
                self.states(model.base_model if causal else model.get_encoder(), texts)
            elif head == "sequence classification":
                self.labels(self.model("AutoModelForSequenceClassification"))
            elif head == "token classification":
                self.token_labels(self.model("AutoModelForTokenClassification"))
            elif head == "question answering":
                self.answers(self.model("AutoModelForQuestionAnswering"))
            elif head in ("none", "encoder"):
                self.states(self.encoder(), self.texts)
            else:
                raise CannotVerify(f"models with the head {head} are not compared")
            if (pathlib.Path(self.directory) / "modules.json").exists():
                self.embeddings()
        return self.rows

    def encoder(self):
        architectures = json.loads(
            (pathlib.Path(self.directory) / "config.json").read_text(encoding="utf-8")
        ).get("architectures") or ["AutoModel"]
        loaded = self.model(architectures[0])
        return loaded.get_encoder() if hasattr(loaded, "get_encoder") else loaded

    def token_ids(self, texts: list[str]) -> None:
        """Compares token ids. Quintet's ids are read from the output of score, which shows the
        tokens of a target."""
        answers = self.quintet.run("score", [{"text": "a", "targets": [t]} for t in texts])
        wrong = []
        for text, answer in zip(texts, answers, strict=True):
            mine = [token["token_id"] for token in answer["targets"][0]["tokens"]]
            if mine != self.tokenizer(text)["input_ids"]:
                wrong.append(f"token ids of {text[:60]!r}: {mine[:12]} ...")
        row = Row("token ids", f"{len(texts)} texts", f"{len(wrong)} differ", "0", not wrong, wrong)
        self.rows.append(row)

    def generate(self, model, texts: list[str]) -> list[list[int]]:
        """Compares Quintet's token ids with the reference's, for greedy search and for beam search.
        Returns the reference's token ids of greedy search."""
        greedy: list[list[int]] = []
        for beams in (1, 4):
            lines = [{"token_ids": self.ids(text)[0].tolist()} for text in texts]
            answers = self.quintet.run(
                "generate", lines, "--num-beams", str(beams), "--max-new-tokens", str(NEW_TOKENS)
            )
            wrong = []
            for text, answer in zip(texts, answers, strict=True):
                ids = self.ids(text)
                output = model.generate(
                    ids,
                    attention_mask=self.torch.ones_like(ids),
                    num_beams=beams,
                    do_sample=False,
                    max_new_tokens=NEW_TOKENS,
                )[0].tolist()
                start = ids.shape[1] if self.config["encoder_layers"] == 0 else 1
                expected, mine = output[start:], answer["sequences"][0]["token_ids"]
                if beams == 1:
                    greedy.append(expected)
                if mine != expected:
                    wrong.append(f"{beams} beams, {text[:60]!r}: {mine} instead of {expected}")
            name = "greedy search" if beams == 1 else f"beam search, {beams} beams"
            difference = f"{len(wrong)} differ"
            self.rows.append(Row(name, f"{len(texts)} texts", difference, "0", not wrong, wrong))
        return greedy

    def score(self, model, texts: list[str], targets: list[list[int]]) -> None:
        """Compares the log-probabilities of the reference's greedy tokens, and of the 5 most likely
        tokens at each position."""
        pairs = [(t, target) for t, target in zip(texts, targets, strict=True) if target]
        lines = [{"token_ids": self.ids(t)[0].tolist(), "targets": [target]} for t, target in pairs]
        answers = self.quintet.run("score", lines, "--top-logprobs", "5")
        worst, tops = 0.0, 0.0
        for (text, target), answer in zip(pairs, answers, strict=True):
            logits = self.logits_of_target(model, self.ids(text), target)
            logs = self.torch.log_softmax(logits.double(), dim=-1)
            for row, token in zip(logs, answer["targets"][0]["tokens"], strict=True):
                worst = max(worst, abs(row[token["token_id"]].item() - token["logprob"]))
                for top in token["top"]:
                    tops = max(tops, abs(row[top["token_id"]].item() - top["logprob"]))
        limit = 10 * self.tolerance
        for name, error in (("log-probabilities", worst), ("5 most likely tokens", tops)):
            self.rows.append(
                Row(name, f"{len(pairs)} targets", f"{error:.1e}", f"{limit:.0e}", error <= limit)
            )

    def logits_of_target(self, model, ids, target: list[int]):
        """Returns the logits from which the tokens of `target` are chosen, [len(target), vocab]."""
        if self.config["encoder_layers"] == 0:
            both = self.torch.cat([ids, self.torch.tensor([target])], dim=1)
            return model(input_ids=both).logits[0, ids.shape[1] - 1 : -1]
        start = model.config.decoder_start_token_id
        if model.generation_config.decoder_start_token_id is not None:
            start = model.generation_config.decoder_start_token_id
        decoder = self.torch.tensor([[start, *target[:-1]]])
        return model(input_ids=ids, decoder_input_ids=decoder).logits[0]

    def states(self, encoder, texts: list[str]) -> None:
        lines = [{"token_ids": self.ids(text)[0].tolist()} for text in texts]
        ours = [a["embeddings"] for a in self.quintet.run("encode", lines, "--pooling", "none")]
        theirs = [encoder(input_ids=self.ids(text)).last_hidden_state[0] for text in texts]
        self.rows.append(compare_states(self.torch, "hidden states", ours, theirs, self.tolerance))

    def labels(self, model) -> None:
        lines = [{"token_ids": self.ids(text)[0].tolist()} for text in self.texts]
        answers = self.quintet.run("classify", lines)
        ours = [[label["logit"] for label in answer["labels"]] for answer in answers]
        theirs = [model(input_ids=self.ids(text)).logits[0] for text in self.texts]
        self.rows.append(compare_states(self.torch, "label logits", ours, theirs, self.tolerance))

    def token_labels(self, model) -> None:
        lines = [{"token_ids": self.ids(text)[0].tolist()} for text in self.texts]
        answers = self.quintet.run("classify", lines)
        ours = [[token["logits"] for token in answer["tokens"]] for answer in answers]
        theirs = [model(input_ids=self.ids(text)).logits[0] for text in self.texts]
        self.rows.append(compare_states(self.torch, "token logits", ours, theirs, self.tolerance))

    def answers(self, model) -> None:
        """Compares the best answers to QUESTION, one for each text as the context: their
        probabilities and texts. An answer has at most MAX_ANSWER_TOKENS tokens."""
        contexts = [text for text in self.texts if text.strip()]
        lines = [{"text": QUESTION, "pair": context} for context in contexts]
        flags = ["--max-answer-tokens", str(MAX_ANSWER_TOKENS)]
        worst, wrong = 0.0, []
        for context, answer in zip(contexts, self.quintet.run("classify", lines, *flags)):
            best = answer["answers"][0]
            probability, begin, end = self.best_answer(model, context)
            worst = max(worst, abs(best["probability"] - probability) / probability)
            text = context.encode()[best["begin_byte"] : best["end_byte"]].decode()
            if text.strip() != context[begin:end].strip():
                wrong.append(f"answer in {context[:60]!r}: {text!r}, not {context[begin:end]!r}")
        compared, limit = f"{len(contexts)} contexts", 10 * self.tolerance
        self.rows.append(
            Row("probability of answers", compared, f"{worst:.1e}", f"{limit:.0e}", worst <= limit)
        )
        self.rows.append(Row("answers", compared, f"{len(wrong)} differ", "0", not wrong, wrong))

    def best_answer(self, model, context: str) -> tuple[float, int, int]:
        """Returns the probability of the best answer, and where it is in the context."""
        pair = self.tokenizer(QUESTION, context, return_offsets_mapping=True)
        output = model(input_ids=self.torch.tensor([pair["input_ids"]]))
        places = [
            (at, *pair["offset_mapping"][at])
            for at, sequence in enumerate(pair.sequence_ids())
            if sequence == 1 and pair["offset_mapping"][at][0] < pair["offset_mapping"][at][1]
        ]
        first, last = places[0][0], places[-1][0] + 1
        starts, ends = (
            self.torch.softmax(logits[0, first:last].double(), dim=-1)
            for logits in (output.start_logits, output.end_logits)
        )
        both = (starts[:, None] * ends[None, :]).triu().tril(MAX_ANSWER_TOKENS - 1)
        begin, end = divmod(int(both.argmax()), both.shape[1])
        spans = {at: (low, high) for at, low, high in places}
        return both.max().item(), spans[first + begin][0], spans[first + end][1]

    def embeddings(self) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise CannotVerify("modules.json needs sentence-transformers to compare") from error
        model = SentenceTransformer(
            self.directory, device="cpu", model_kwargs={"dtype": self.torch.float32}
        )
        answers = self.quintet.run("encode", [{"text": text} for text in self.texts])
        ours = [answer["embedding"] for answer in answers]
        theirs = list(model.encode(self.texts, batch_size=1, convert_to_tensor=True))
        self.rows.append(compare_states(self.torch, "embeddings", ours, theirs, self.tolerance))


def report(model: str, comparison: Comparison, rows: list[Row], arguments) -> str:
    passed = all(row.passed for row in rows)
    lines = [
        f"# {model}: {'agrees' if passed else 'DIFFERS'}",
        "",
        f"{comparison.quintet.version()}, {arguments.dtype} on {arguments.device}, compared with "
        f"transformers {comparison.transformers.__version__}, torch "
        f"{comparison.torch.__version__} in f32, Python {platform.python_version()}.",
        "",
        "| check | compared | difference | tolerance | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        verdict = "passed" if row.passed else "**FAILED**"
        lines.append(
            f"| {row.check} | {row.compared} | {row.difference} | {row.tolerance} | {verdict} |"
        )
    notes = [note for row in rows for note in row.notes]
    if notes:
        lines += ["", "## Differences", ""] + [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="directory, or hub id with an optional @REVISION")
    parser.add_argument("--quintet", default=str(SOURCE / "build" / "quintet"), help="binary")
    parser.add_argument("--report", help="file for the report; default: standard output")
    parser.add_argument("--dtype", default="f32", help="weight type of Quintet (default f32)")
    parser.add_argument("--device", default="cpu", help="device of Quintet (default cpu)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-5,
        help="largest relative difference of states and logits (default 1e-5; bf16: 3e-2)",
    )
    arguments = parser.parse_args()
    try:
        directory = directory_of(arguments.model)
        quintet = Quintet(arguments.quintet, directory, arguments.dtype, arguments.device)
        comparison = Comparison(directory, quintet, arguments.tolerance)
        rows = comparison.run()
    except (CannotVerify, ImportError, OSError, ValueError) as error:
        print(f"verify_model: {error}", file=sys.stderr)
        return 2
    text = report(arguments.model, comparison, rows, arguments)
    if arguments.report:
        pathlib.Path(arguments.report).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

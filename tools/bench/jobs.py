#!/usr/bin/env python3
"""Measures whole jobs over lines of text: `quintet generate|encode|classify` with default flags,
from process start to exit, compared with CTranslate2 and transformers on the same checkpoints and
lines.

The peers run as a user would run them: all lines are in memory, batches are sorted by length, and
tokenizing and detokenizing are included. Their model is already loaded and warmed up; the time of
loading is reported separately. The fastest of several batch sizes counts. Models and lines are made
by job_models.py; g2p is the shipped model with the words of tests/data/g2p.

Columns of the report: "command" is the time in seconds of Quintet's whole command. "job" is the
time from the first line read to the last byte written (for peers: from the list of input lines to
the list of results). "equal" is the share of a peer's output lines that are the same as Quintet's.

usage: jobs.py --quintet build/quintet --work DIR --out FILE [--device cuda] [--jobs ...]
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import job_models
import peers
from runs import flag_parser, write_report

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MIN_TOKENS, NEW_TOKENS = 4, 60
WORDS = dict(translation=(8, 24), classifier=(8, 60), gpt2=(8, 30))
JOBS = {  # name: (model, kind, beams, lines)
    "g2p-beams": ("g2p", "generate", 4, 120_000),
    "g2p-greedy": ("g2p", "generate", 1, 120_000),
    "translation-beams": ("translation", "generate", 4, 40_000),
    "translation-greedy": ("translation", "generate", 1, 40_000),
    "t5-small-beams": ("t5-small", "generate", 4, 40_000),
    "t5-small-greedy": ("t5-small", "generate", 1, 40_000),
    "t5-base-beams": ("t5-base", "generate", 4, 40_000),
    "t5-base-greedy": ("t5-base", "generate", 1, 40_000),
    "flan-t5-xl-greedy": ("flan-t5-xl", "generate", 1, 10_000),
    "gpt2-greedy": ("gpt2", "generate", 1, 40_000),
    "encode": ("t5-small", "encode", 1, 100_000),
    "classify": ("classifier", "classify", 1, 40_000),
}


def input_lines(model: str, count: int) -> list[str]:
    if model == "g2p":
        path = ROOT / "tests/data/g2p/test.tsv"
        words = [line.split("\t")[0] for line in path.read_text().splitlines()]
        return (words * (count // len(words) + 1))[:count]
    return job_models.lines(model, count, *WORDS.get(model, (8, 58)))


def prepare(args, model: str) -> pathlib.Path:
    if model == "g2p":
        return ROOT / "deploy/models/g2p"
    return job_models.prepare(model, args.work)


# ---- Engines: each function returns (seconds of the job, output lines) ----


def run_quintet(args, job: str, directory, lines, flags):
    _, kind, beams, _ = JOBS[job]
    command = [args.quintet, kind, "--model", directory, "--device", args.device]
    if args.threads:
        command += ["--threads", str(args.threads)]
    if args.dtype:
        command += ["--dtype", args.dtype]
    if kind == "generate":
        command += ["--num-beams", str(beams), "--max-new-tokens", str(NEW_TOKENS)]
        command += ["--min-new-tokens", str(MIN_TOKENS)]
    source, target = args.work / "lines.txt", args.work / "answers"
    source.write_text("".join(f"{line}\n" for line in lines))
    if kind == "encode":
        command += ["--output", "npy"]
    command += flags
    with source.open("rb") as read, target.open("wb") as write:
        begin = time.perf_counter()
        run = subprocess.run(command, stdin=read, stdout=write, stderr=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - begin
    if run.returncode != 0:
        raise RuntimeError(f"{command}: exit {run.returncode}: {run.stderr[-800:]}")
    summary = re.search(r"(\d+) tokens in ([\d.]+) s.* (\d+) failed", run.stderr)
    answers = [] if kind == "encode" else target.read_text().split("\n")[:-1]
    return dict(
        command=seconds,
        job=float(summary[2]),
        tokens=int(summary[1]),
        failed=int(summary[3]),
        answers=answers,
    )


def sorted_batches(ids, size):
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
    return [order[begin : begin + size] for begin in range(0, len(ids), size)]


class Transformers:
    def __init__(self, args, job, directory):
        import torch
        import transformers

        self.torch, self.args, self.job = torch, args, job
        if args.threads:
            torch.set_num_threads(args.threads)
        kind = JOBS[job][1]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.tokenizer.padding_side = "left" if JOBS[job][0] == "gpt2" else "right"
        dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
        loader = {
            "generate": transformers.AutoModelForCausalLM
            if JOBS[job][0] == "gpt2"
            else transformers.AutoModelForSeq2SeqLM,
            "encode": transformers.T5EncoderModel,
            "classify": transformers.AutoModelForSequenceClassification,
        }[kind]
        self.model = loader.from_pretrained(directory, dtype=dtype).to(args.device).eval()

    settings = [64, 256, 1024]

    def run(self, lines, batch):
        torch = self.torch
        _, kind, beams, _ = JOBS[self.job]
        begin = time.perf_counter()
        answers = [None] * len(lines)
        ids = self.tokenizer(lines)["input_ids"]
        for rows in sorted_batches(ids, batch):
            inputs = self.tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            inputs = inputs.to(self.args.device)
            with torch.inference_mode():
                if kind == "generate":
                    out = self.model.generate(
                        **inputs,
                        num_beams=beams,
                        do_sample=False,
                        min_new_tokens=MIN_TOKENS,
                        max_new_tokens=NEW_TOKENS,
                        pad_token_id=0,
                    )
                    if JOBS[self.job][0] == "gpt2":
                        out = out[:, inputs["input_ids"].shape[1] :]
                    texts = self.tokenizer.batch_decode(out, skip_special_tokens=True)
                elif kind == "encode":
                    states = self.model(**inputs).last_hidden_state.float()
                    mask = inputs["attention_mask"].unsqueeze(-1)
                    texts = list(((states * mask).sum(1) / mask.sum(1)).cpu())
                else:
                    texts = self.model(**inputs).logits.float().argmax(-1).tolist()
            for row, text in zip(rows, texts):
                answers[row] = text
        return time.perf_counter() - begin, answers


class CTranslate2:
    settings = [256, 1024, "32k tokens"]

    def __init__(self, args, job, directory):
        import ctranslate2
        import transformers

        model, kind, _, _ = JOBS[job]
        if kind != "generate":
            raise RuntimeError("generation only")
        self.job = job
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        converted = args.work / f"{model}.ct2"
        if not (converted / "model.bin").exists():
            convert_for_ctranslate2(directory, converted, self.tokenizer, model)
        options = dict(device=args.device, compute_type=args.compute_type)
        if args.device == "cpu":
            options.update(inter_threads=1, intra_threads=args.threads or os.cpu_count())
        loader = ctranslate2.Generator if model == "gpt2" else ctranslate2.Translator
        self.engine = loader(str(converted), **options)

    def run(self, lines, batch):
        model, _, beams, _ = JOBS[self.job]
        begin = time.perf_counter()
        encodings = self.tokenizer(lines)["input_ids"]
        tokens = [self.tokenizer.convert_ids_to_tokens(ids) for ids in encodings]
        options = dict(beam_size=beams, max_batch_size=batch, batch_type="examples")
        if batch == "32k tokens":
            options.update(max_batch_size=32768, batch_type="tokens")
        if model == "gpt2":
            results = self.engine.generate_batch(
                tokens,
                min_length=MIN_TOKENS,
                max_length=NEW_TOKENS,
                include_prompt_in_result=False,
                **options,
            )
            ids = [result.sequences_ids[0] for result in results]
        else:
            results = self.engine.translate_batch(
                tokens,
                min_decoding_length=MIN_TOKENS,
                max_decoding_length=NEW_TOKENS,
                max_input_length=0,
                **options,
            )
            ids = [self.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        answers = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return time.perf_counter() - begin, answers


def convert_for_ctranslate2(directory, target, tokenizer, model_name):
    """Converts a checkpoint like ctranslate2.converters.TransformersConverter, but with any class
    of tokenizer; the converter rejects those that it does not know."""
    import transformers
    from ctranslate2.converters import transformers as loaders

    gpt2 = model_name == "gpt2"
    loader_class = transformers.GPT2LMHeadModel if gpt2 else transformers.T5ForConditionalGeneration
    model = loader_class.from_pretrained(directory).float().eval()
    spec = loaders._MODEL_LOADERS["GPT2Config" if gpt2 else "T5Config"].get_model_spec(model)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    pieces += [f"<unused{i}>" for i in range(model.config.vocab_size - len(pieces))]
    if gpt2:
        spec.register_vocabulary(pieces)
    else:
        spec.register_source_vocabulary(pieces)
        spec.register_target_vocabulary(pieces)
        spec.config.decoder_start_token = "<pad>"
        spec.config.layer_norm_epsilon = model.config.layer_norm_epsilon
    spec.config.bos_token = "</s>" if gpt2 else "<pad>"
    spec.config.eos_token, spec.config.unk_token = "</s>", "<unk>"
    target.mkdir(parents=True, exist_ok=True)
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(target))


PEERS = {"ctranslate2": CTranslate2, "transformers": Transformers}


def peer_worker(args, engine: str, job: str):
    """Runs one job on one peer, in a process of its own, and prints a JSON line for each batch
    size."""
    model, _, _, count = JOBS[job]
    directory = prepare(args, model)
    lines = input_lines(model, args.lines or count)
    begin = time.perf_counter()
    try:
        runner = PEERS[engine](args, job, directory)
    except Exception as error:  # shown as a missing row, with its reason
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    loading = time.perf_counter() - begin
    # If a peer gets only some of the lines, take every n-th line, so that all lengths are
    # represented.
    chosen = lines[:: max(1, len(lines) // args.peer_lines)] if args.peer_lines else lines
    for setting in args.peer_batches or runner.settings:
        try:
            runner.run(chosen[:64], setting)
            seconds, answers = runner.run(chosen, setting)
        except Exception as error:
            print(json.dumps({"setting": setting, "error": repr(error)[:300]}), flush=True)
            continue
        if JOBS[job][1] == "encode":
            answers = []
        print(
            json.dumps(
                dict(
                    setting=setting,
                    loading=loading,
                    lines=len(chosen),
                    measured=seconds,
                    job=seconds * len(lines) / len(chosen),
                    answers=answers,
                )
            ),
            flush=True,
        )


# ---- The comparison ----


def equal_share(own, other, step):
    pairs = list(zip(own[::step], other))
    return sum(str(a) == str(b) for a, b in pairs) / len(pairs) if pairs else None


def measure(args, job: str, report):
    model, kind, _, count = JOBS[job]
    directory = prepare(args, model)
    lines = input_lines(model, args.lines or count)
    own_answers = None
    for variant in [""] + args.variant:
        best = None
        for _ in range(args.repetitions):
            result = run_quintet(args, job, directory, lines, variant.split())
            if best is None or result["command"] < best["command"]:
                best = result
        answers = best.pop("answers")
        own_answers = own_answers or answers
        row = dict(job_name=job, engine="quintet", flags=variant, lines=len(lines), **best)
        row["equal_to_default"] = equal_share(own_answers, answers, 1)
        report["rows"].append(row)
        print(
            f"{job:20s} quintet {variant or 'default flags':44s} command {row['command']:7.2f} s  "
            f"job {row['job']:7.2f} s  {len(lines) / row['command']:9.0f} lines/s  "
            f"{row['tokens'] / row['job']:9.0f} tokens/s",
            flush=True,
        )
    for engine in args.peers:
        worker = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--worker", engine, job],
            stdout=subprocess.PIPE,
            text=True,
        )
        results = [json.loads(line) for line in worker.stdout.splitlines() if line[:1] == "{"]
        for result in results or [{"error": f"exit {worker.returncode}"}]:
            answers = result.pop("answers", [])
            if answers and kind == "generate":
                step = max(1, len(lines) // args.peer_lines) if args.peer_lines else 1
                result["equal"] = equal_share(own_answers, answers, step)
            report["rows"].append(dict(job_name=job, engine=engine, **result))
            if "error" in result:
                print(f"{job:20s} {engine} {result}", flush=True)
                continue
            note = "" if result["lines"] == len(lines) else f" (of {result['lines']} lines)"
            print(
                f"{job:20s} {engine} {result['setting']!s:12s} job {result['job']:7.2f} s{note}  "
                f"equal lines {result.get('equal')}",
                flush=True,
            )


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--quintet", default="build/quintet")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="checkpoints, kept")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="report (JSON)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all")
    parser.add_argument("--dtype", default="", help="of Quintet; default: its own")
    parser.add_argument("--compute-type", default="auto", help="of CTranslate2")
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--lines", type=int, default=0, help="instead of the job's own number")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--peer-batches", nargs="*", help="instead of each peer's own settings")
    parser.add_argument(
        "--peer-lines", type=int, default=0, help="lines that peers run; their time is scaled"
    )
    parser.add_argument("--variant", action="append", default=[], help="flags of one more row")
    parser.add_argument("--repetitions", type=int, default=1, help="of Quintet; the fastest counts")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.peer_batches = [int(b) if b.isdigit() else b for b in args.peer_batches or []]
    args.work.mkdir(parents=True, exist_ok=True)
    if args.worker:
        return peer_worker(args, *args.worker)
    version = subprocess.run([args.quintet, "--version"], stdout=subprocess.PIPE, text=True)
    arguments = {k: str(v) for k, v in vars(args).items() if k not in ("work", "out", "worker")}
    report = dict(
        quintet=version.stdout.splitlines()[0],
        versions=peers.versions(),
        arguments=arguments,
        rows=[],
    )
    for job in args.jobs:
        measure(args, job, report)
        write_report(args.out, report)  # after each job: a run may be cut short


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compares Quintet's tokenizers with Hugging Face's `transformers` and `tokenizers` on fuzzed and
multilingual strings.

Builds tokenizer files of every supported kind with those libraries and with `sentencepiece` (no
network), sends the same strings to them and to the program tokenizer_dump, and counts differences
in ids, in ids without special tokens, and in decoded texts. Spans are compared too, and counted
separately.
  tools/tokenizer_oracle.py --dump build/tools/tokenizer_dump --strings 200000 \\
      --out tools/bench/results/tokenizers.json
  tools/tokenizer_oracle.py --fixtures tests/data/tokenizers
      (writes the test cases of ctest; with --kinds only for these kinds)
  tools/tokenizer_oracle.py --dump build/tools/tokenizer_dump --long-words \\
      --out tools/bench/results/long_words.json
      (does not compare, but measures the time for one word of up to 1 MB; the time is linear if a
      word of twice the length takes about twice as long)
Needs: tokenizers, sentencepiece, transformers 5, protobuf.
"""

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import sentencepiece as spm
import tokenizers
import transformers
from tokenizer_kinds import KINDS, ROOT, HuggingFace
from tokenizer_texts import fuzz_string


def random_ids(rng, size):
    return [rng.randrange(size) for _ in range(rng.randrange(1, 12))]


def compare(kind, folder, reference, dump, texts, rng, vocabulary):
    """Compares tokenizer_dump with the reference on texts and random ids. Returns the number of
    differences of each kind, and the first ones."""
    id_lists = [random_ids(rng, vocabulary) for _ in range(max(1, len(texts) // 10))]
    requests = [json.dumps({"text": t}) for t in texts] + [json.dumps({"ids": i}) for i in id_lists]
    run = subprocess.run(
        [dump, folder], input="\n".join(requests) + "\n", capture_output=True, text=True
    )
    if run.returncode != 0:
        raise SystemExit(f"{kind}: {run.stderr}")
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    counts = {"strings": len(texts), "id_lists": len(id_lists), "ids": 0, "decoded": 0, "spans": 0}
    shown = []

    def differ(what, *values):
        counts[what] += 1
        if len(shown) < 4:
            shown.append((what,) + values)

    for text, answer in zip(texts, answers):
        ids, plain, spans = reference.encode(text)
        if (answer["ids"], answer["plain"]) != (ids, plain):
            differ("ids", text, answer["plain"], plain)
            continue
        skip, keep = reference.decode(ids)
        if answer["skip"] != skip or (keep is not None and answer["keep"] != keep):
            differ("decoded", text, answer["skip"], skip, answer["keep"], keep)
        if spans is not None and answer["spans"] != spans:
            counts["spans"] += 1
            if len(shown) < 2:
                shown.append(("spans", text, answer["spans"], spans))
    for ids, answer in zip(id_lists, answers[len(texts) :]):
        skip, keep = reference.decode(ids)
        if answer["skip"] != skip or (keep is not None and answer["keep"] != keep):
            differ("decoded", ids, answer["skip"], skip, answer["keep"], keep)
    return counts, shown


LONG_WORDS = {
    "letter": "a",
    "letters": "thequickbrownfox",
    "accents": "e\u0301\u00fc",
    "ideographs": "\u4f60\u597d",
    "symbols": "!?",
}
LONG_WORD_BYTES = [62_500, 125_000, 250_000, 500_000, 1_000_000]
LONG_WORD_PROCESSES = 9


def time_long_words(kind, folder, dump):
    """Returns the thread time in milliseconds for each word and size, and the largest factor by
    which the time grows when the size doubles.

    Each time is the median of several processes, and each process times only one text: otherwise
    later texts would reuse memory that the kernel has already cleared for earlier ones.
    """
    words = {}
    for word, unit in LONG_WORDS.items():
        words[word] = []
        for size in LONG_WORD_BYTES:
            times = []
            for _ in range(LONG_WORD_PROCESSES):
                run = subprocess.run(
                    [dump, folder],
                    input=json.dumps({"repeat": unit, "bytes": size}) + "\n",
                    capture_output=True,
                    text=True,
                )
                if run.returncode != 0:
                    raise SystemExit(f"{kind}: {run.stderr}")
                times.append(json.loads(run.stdout)["milliseconds"])
            words[word].append(round(statistics.median(times), 3))
    growth = max(after / before for row in words.values() for before, after in zip(row, row[1:]))
    return {"milliseconds": words, "largest_growth_at_twice_the_bytes": round(growth, 2)}


# Kinds of tokenizers whose files are small enough for the repository. Most of them do not contain
# Unicode normalisation rules, which are large. (GPT-2's files are in the repository already.)
FIXTURES = [
    "sp-unigram-nmt_nfkc",
    "sp-unigram-identity-bytes",
    "sp-bpe-identity-bytes",
    "t5",
    "t5-never",
    "t5-lower",
    "gpt2",
    "fat5-french",
    "fat5-minipile",
    "bpe-bytes",
    "bpe-word-ends",
    "bpe-splits",
    "bpe-byte-level-split",
    "byt5",
    "g2p",
    "mt5-spiece",
    "t5-json-not-legacy",
    "t5-json-undeclared",
    "umt5-json",
    "gpt2-json-rebuilt",
]
CASES_OF_A_FIXTURE = 142


def write_fixtures(target, kinds):
    """Writes one folder for each kind, with the tokenizer files and cases.jsonl. A case is {"t":
    text, "i": ids, "s": ids decoded without special tokens, "k": ids decoded with them if that
    differs}."""
    for number, kind in enumerate(FIXTURES):
        if kinds and kind not in kinds:
            continue
        rng = random.Random(4242 + number)
        folder = os.path.join(target, kind)
        os.makedirs(folder, exist_ok=True)
        if kind in ("gpt2", "g2p"):
            with tempfile.TemporaryDirectory() as scratch:
                reference = KINDS[kind](scratch)
        else:
            reference = KINDS[kind](folder)
        with open(os.path.join(folder, "cases.jsonl"), "w") as out:
            for _ in range(CASES_OF_A_FIXTURE):
                text = fuzz_string(rng)
                while len(text) > 120:
                    text = fuzz_string(rng)
                ids = reference.encode(text)[0]
                skip, keep = reference.decode(ids)
                line = {"t": text, "i": ids, "s": skip}
                if keep is not None and keep != skip:
                    line["k"] = keep
                out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def vocabulary_size(reference):
    return (
        reference.tokenizer.get_vocab_size()
        if isinstance(reference, HuggingFace)
        else len(reference.tokenizer)
    )


def cpu_model():
    with open("/proc/cpuinfo") as lines:
        return next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
            "unknown",
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dump")
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--out")
    parser.add_argument("--fixtures")
    parser.add_argument("--long-words", action="store_true")
    options = parser.parse_args()
    kinds = options.kinds.split(",") if options.kinds else []
    if options.fixtures:
        write_fixtures(options.fixtures, kinds)
        return 0
    if not options.dump:
        parser.error("--dump or --fixtures")
    kinds = {k: v for k, v in KINDS.items() if not kinds or k in kinds}
    totals = {"strings": 0, "id_lists": 0, "ids": 0, "decoded": 0, "spans": 0}
    by_kind = {}
    for number, (kind, make) in enumerate(kinds.items()):
        rng = random.Random(options.seed * 1000 + number)
        with tempfile.TemporaryDirectory() as folder:
            reference = make(folder)
            if options.long_words:
                by_kind[kind] = time_long_words(kind, folder, options.dump)
                print(kind, by_kind[kind], flush=True)
                continue
            texts = [fuzz_string(rng) for _ in range(options.strings // len(kinds))]
            counts, shown = compare(
                kind, folder, reference, options.dump, texts, rng, vocabulary_size(reference)
            )
            by_kind[kind] = counts
            for key in totals:
                totals[key] += counts[key]
            print(kind, counts, flush=True)
            for difference in shown:
                print("   ", *[repr(value)[:400] for value in difference], sep="\n      ")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    result = {"date": datetime.date.today().isoformat(), "commit": commit}
    if options.long_words:
        result |= {
            "bytes": LONG_WORD_BYTES,
            "processes": LONG_WORD_PROCESSES,
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": cpu_model(),
        }
    else:
        print(totals)
        result |= {
            "seed": options.seed,
            "tokenizers": tokenizers.__version__,
            "transformers": transformers.__version__,
            "sentencepiece": spm.__version__,
            "mismatches": {
                "ids": totals["ids"],
                "decoded_text": totals["decoded"],
                "spans": totals["spans"],
            },
            "compared": {"strings": totals["strings"], "id_lists": totals["id_lists"]},
        }
    result["kinds"] = by_kind
    if options.out:
        with open(options.out, "w") as out:
            json.dump(result, out, indent=1)
            out.write("\n")
    return 1 if totals["ids"] or totals["decoded"] else 0


if __name__ == "__main__":
    sys.exit(main())

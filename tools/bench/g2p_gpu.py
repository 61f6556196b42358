#!/usr/bin/env python3
"""Measures the accuracy of the shipped model on a GPU for each weight type, compared with
transformers in bf16 and f16 in the same run.

Input: the 6,000 held-out words of tests/data/g2p, decoded with 4 beams. For each engine and type
the report has the fraction of correct words, and the fraction of output lines that equal
transformers' f32 output, which was recorded with the words. The exit code is 0 if:
- in f32 at least 99.9 % of Quintet's lines are equal;
- the fraction of correct words is within 0.3 points of the recorded 64.80 % in bf16 and f16, within
  0.6 points in int8 and fp8;
- Quintet's bf16 has at least as many equal lines as transformers' bf16.

usage: g2p_gpu.py --quintet build/quintet [--dtypes f32 bf16 f16] [--device cuda] [--out FILE]
"""

import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from runs import add_timeout_and_out, flag_parser, flags_of, run, write_report  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL, DATA = ROOT / "deploy/models/g2p", ROOT / "tests/data/g2p"
BEAMS, NEW_TOKENS = 4, 64
VERDICT = {True: "holds", False: "DOES NOT HOLD", None: ""}
POINTS = {"f32": 0.1, "bf16": 0.3, "f16": 0.3, "int8": 0.6, "fp8": 0.6}


def quintet_answers(args, dtype, words):
    flags = flags_of(
        dict(
            model=MODEL,
            device=args.device,
            dtype=dtype,
            num_beams=BEAMS,
            max_new_tokens=NEW_TOKENS,
            output="json",
            max_running=args.batch * BEAMS,
        )
    )
    lines = run([args.quintet, "generate", *flags], args.timeout, "\n".join(words) + "\n")
    return [json.loads(line)["sequences"][0]["text"] for line in lines.splitlines()]


def transformers_answers(args, dtype, words):
    import torch
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = T5ForConditionalGeneration.from_pretrained(
        MODEL, dtype={"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    )
    model = model.to(args.device).eval()
    answers = []
    for begin in range(0, len(words), args.batch):
        inputs = tokenizer(words[begin : begin + args.batch], return_tensors="pt", padding=True).to(
            args.device
        )
        with torch.inference_mode():
            out = model.generate(
                **inputs, num_beams=BEAMS, do_sample=False, max_new_tokens=NEW_TOKENS
            )
        answers += tokenizer.batch_decode(out, skip_special_tokens=True)
    return answers


def percent(answers, expected):
    return 100 * sum(a == e for a, e in zip(answers, expected, strict=True)) / len(expected)


def write(args, words, recorded, rows):
    if not args.out:
        return
    report = dict(
        words=len(words), beams=BEAMS, recorded_percent=recorded, device=args.device, results=rows
    )
    if args.device == "cuda":
        import torch

        report["device"], report["torch"] = torch.cuda.get_device_name(), torch.__version__
    write_report(args.out, report)


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--quintet", default=str(ROOT / "build/quintet"))
    parser.add_argument(
        "--dtypes", nargs="+", default=["f32", "bf16", "f16", "int8", "fp8"], choices=list(POINTS)
    )
    parser.add_argument(
        "--peer-dtypes", nargs="*", default=["bf16", "f16"], choices=["f32", "bf16", "f16"]
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--batch", type=int, default=128, help="batch size of both engines, in words"
    )
    parser.add_argument("--lines", type=int, default=6000, help="use only the first N words")
    add_timeout_and_out(parser, 120, "run of Quintet")
    args = parser.parse_args()
    lines = [line.split("\t") for line in (DATA / "test.tsv").read_text().splitlines()][
        : args.lines
    ]
    words, references = [w for w, _ in lines], [r for _, r in lines]
    exact = json.loads((DATA / f"g2p_hyp_beam{BEAMS}.json").read_text())[: args.lines]
    recorded = percent(exact, references)

    rows, ok = [], True
    for engine, dtype in [("quintet", d) for d in args.dtypes] + [
        ("transformers", d) for d in args.peer_dtypes
    ]:
        begin = time.perf_counter()
        try:
            answers = (quintet_answers if engine == "quintet" else transformers_answers)(
                args, dtype, words
            )
        except (
            RuntimeError,
            subprocess.TimeoutExpired,
            ImportError,
        ) as error:  # the row contains the error; the others continue
            print(f"# {engine} {dtype}: {error}", file=sys.stderr)
            rows.append(dict(engine=engine, dtype=dtype, error=str(error)))
            ok = ok and engine != "quintet"
            continue
        row = dict(
            engine=engine,
            dtype=dtype,
            words_right_percent=percent(answers, references),
            lines_as_f32_percent=percent(answers, exact),
            wall_s=time.perf_counter() - begin,
        )
        if engine == "quintet":
            row["holds"] = abs(row["words_right_percent"] - recorded) <= POINTS[dtype] and (
                dtype != "f32" or row["lines_as_f32_percent"] >= 99.9
            )
            ok = ok and row["holds"]
        rows.append(row)
        write(args, words, recorded, rows)
        print(
            f"{engine:13s} {dtype:5s} words right {row['words_right_percent']:6.2f} %  lines as "
            f"f32 {row['lines_as_f32_percent']:6.2f} %  "
            f"{row['wall_s']:5.1f} s  {VERDICT[row.get('holds')]}",
            flush=True,
        )
    shares = {(r["engine"], r["dtype"]): r.get("lines_as_f32_percent") for r in rows}
    for dtype in ("bf16", "f16"):
        own, peer = shares.get(("quintet", dtype)), shares.get(("transformers", dtype))
        if own is not None and peer is not None:
            print(
                f"{dtype}: lines as f32 {own:.2f} % against transformers' {peer:.2f} %: "
                f"{VERDICT[own >= peer]}"
            )
            ok = ok and own >= peer
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

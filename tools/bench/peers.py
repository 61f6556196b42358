#!/usr/bin/env python3
"""Compares Quintet with CTranslate2 and transformers on a CPU: same weights, same shapes, same
threads, same run.

Needs Python packages from PyPI: torch, transformers, ctranslate2, numpy. Nothing is downloaded:
checkpoints with random weights of the real shapes are made here, from transformers' own config
classes, and converted for CTranslate2 by its own loaders.

What a row measures, in milliseconds of wall time for the whole call:
- encode BxN: computing the encoder's final hidden states of B inputs of N random tokens (T5).
  transformers: model.encoder; CTranslate2: ctranslate2.Encoder on the same encoder's spec, since
  its Translator does not return states. GPT-2 has no encoder: on all three engines its rows measure
  a prompt of N tokens and one greedy token, with N = 1000 instead of 2048, because GPT-2 has 1,024
  positions.
- generate B rows: encode N=128 tokens and decode exactly 64 tokens greedily or with 4 beams (end of
  sequence suppressed: min = max).
Engines alternate: in every round each engine in turn runs all shapes while the other engines'
processes are stopped (SIGSTOP), so that none of their threads spins during a measurement. Each
shape is warmed up once; the figure is the median over rounds x repetitions.
int8: Quintet --dtype int8, CTranslate2 compute_type int8, transformers torch dynamic quantisation
of its linear layers (if the installed torch still has it; there is no such row for GPT-2, whose
Conv1D layers would stay f32).

usage: peers.py --quintet build/quintet --work DIR --out DIR [--models ...] [--threads 1 2] ...
"""

import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time

from runs import bench, bench_parser, write_report


def t5_sizes(d_model, d_ff, layers, heads, d_kv=64, **fields):
    """Returns fields of T5Config. Encoder and decoder have `layers` layers each."""
    return dict(
        d_model=d_model,
        d_kv=d_kv,
        d_ff=d_ff,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        **fields,
    )


T5_SIZES = {
    "t5-small": t5_sizes(d_model=512, d_ff=2048, layers=6, heads=8),
    "t5-base": t5_sizes(d_model=768, d_ff=3072, layers=12, heads=12),
    "flan-t5-xl": t5_sizes(
        d_model=2048, d_ff=5120, layers=24, heads=32, feed_forward_proj="gated-gelu"
    ),
}
GPT2_SIZES = dict(n_embd=768, n_layer=12, n_head=12, n_positions=1024)
SHAPES = {  # model: (family, transformers config)
    "t5-small": ("t5", dict(T5_SIZES["t5-small"], vocab_size=32128)),
    "t5-base": ("t5", dict(T5_SIZES["t5-base"], vocab_size=32128)),
    "flan-t5-xl": (
        "t5",
        dict(T5_SIZES["flan-t5-xl"], vocab_size=32128, tie_word_embeddings=False),
    ),
    "gpt2": ("gpt2", dict(GPT2_SIZES, vocab_size=50257)),
    "tiny-t5": (
        "t5",
        t5_sizes(d_model=64, d_kv=16, d_ff=128, layers=2, heads=4, vocab_size=1000),
    ),
    "tiny-gpt2": ("gpt2", dict(n_embd=64, n_layer=2, n_head=4, n_positions=1024, vocab_size=1000)),
}
LONG_T5_BASE = t5_sizes(
    d_model=768,
    d_ff=2048,
    layers=12,
    heads=12,
    vocab_size=32128,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
)
LONG_SHAPES = {  # only for encode_memory_gpu.py: CTranslate2 has no LongT5
    "long-t5-local-base": ("longt5", dict(LONG_T5_BASE, encoder_attention_type="local")),
    "long-t5-tglobal-base": (
        "longt5",
        dict(LONG_T5_BASE, encoder_attention_type="transient-global"),
    ),
}
GPT2_LONG = 1000


# ---- Checkpoints ----


def build_model(name):
    import torch
    import transformers

    family, sizes = {**SHAPES, **LONG_SHAPES}[name]
    torch.manual_seed(1)
    if family == "t5":
        config = transformers.T5Config(decoder_start_token_id=0, **sizes)
        return transformers.T5ForConditionalGeneration(config).eval()
    if family == "longt5":
        config = transformers.LongT5Config(decoder_start_token_id=0, **sizes)
        return transformers.LongT5ForConditionalGeneration(config).eval()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    ).eval()


def tokens_of(vocab):
    return ["<pad>", "</s>", "<unk>"] + [f"t{i}" for i in range(3, vocab)]


def prepare(name, work):
    """Writes three directories unless they exist: work/NAME (Hugging Face's format), and for
    CTranslate2 work/NAME.ct2 and, for T5, work/NAME.ct2-encoder."""
    import ctranslate2
    from ctranslate2.converters import transformers as loaders
    from ctranslate2.specs import transformer_spec

    directory = os.path.join(work, name)
    if os.path.exists(directory + ".done"):
        return
    import torch

    model = build_model(name)
    model.save_pretrained(directory)
    family, _ = SHAPES[name]
    vocabulary = tokens_of(model.config.vocab_size)
    loader = loaders._MODEL_LOADERS["T5Config" if family == "t5" else "GPT2Config"]

    def save(spec, path):
        os.makedirs(path, exist_ok=True)
        spec.validate()
        spec.optimize(quantization=None)
        spec.save(path)

    with torch.no_grad():
        spec = loader.get_model_spec(model)
        if family == "t5":
            spec.register_source_vocabulary(vocabulary)
            spec.register_target_vocabulary(vocabulary)
            spec.config.decoder_start_token = "<pad>"
            spec.config.layer_norm_epsilon = model.config.layer_norm_epsilon
        else:
            spec.register_vocabulary(vocabulary)
        spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = (
            "<pad>",
            "</s>",
            "<unk>",
        )
        save(spec, directory + ".ct2")
        if family == "t5":
            encoder = transformer_spec.TransformerEncoderModelSpec(
                loader.get_model_spec(model).encoder
            )
            encoder.register_vocabulary(vocabulary)
            encoder.config.bos_token, encoder.config.eos_token, encoder.config.unk_token = (
                "<pad>",
                "</s>",
                "<unk>",
            )
            encoder.config.layer_norm_epsilon = model.config.layer_norm_epsilon
            save(encoder, directory + ".ct2-encoder")
    open(directory + ".done", "w").close()


# ---- Shapes ----


def shapes_of(name, args):
    family, _ = SHAPES[name]
    shapes = []
    for text in args.encode:
        batch, length = map(int, text.split("x"))
        if family == "gpt2":
            length = min(length, GPT2_LONG)
        shapes.append(
            dict(
                mode="encode",
                name="prompt" if family == "gpt2" else "encode",
                batch=batch,
                input_tokens=length,
                num_beams=1,
                new_tokens=0,
            )
        )
    for batch in args.generate:
        for beams in args.beams:
            shapes.append(
                dict(
                    mode="generate",
                    batch=batch,
                    input_tokens=args.input_tokens,
                    num_beams=beams,
                    new_tokens=args.new_tokens,
                )
            )
    return shapes


def label(shape):
    if shape["mode"] != "generate":
        return f"{shape['name']} {shape['batch']}x{shape['input_tokens']}"
    kind = "greedy" if shape["num_beams"] == 1 else f"beam {shape['num_beams']}"
    return f"generate {shape['batch']} rows, {kind}"


# ---- Workers: each runs one engine in its own process and is controlled by JSON lines ----


def random_ids(shape, vocab, seed):
    import numpy

    return numpy.random.default_rng(seed).integers(
        min(100, vocab // 2), vocab, (shape["batch"], shape["input_tokens"])
    )


def generate(model, ids, mask, new_tokens, **options):
    """Generates exactly `new_tokens` tokens for each row of `ids` with transformers, greedily
    unless `options` of its generate() say otherwise."""
    return model.generate(
        input_ids=ids,
        attention_mask=mask,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        **{"do_sample": False, **options},
    )


class Transformers:
    def __init__(self, directory, name, dtype, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.family = SHAPES[name][0]
        self.vocab = SHAPES[name][1]["vocab_size"]
        import transformers

        model_class = (
            transformers.T5ForConditionalGeneration
            if self.family == "t5"
            else transformers.GPT2LMHeadModel
        )
        self.model = model_class.from_pretrained(directory).eval()
        if dtype == "int8":
            if self.family == "gpt2":
                raise RuntimeError("GPT-2's Conv1D layers have no dynamic quantisation")
            self.model = torch.ao.quantization.quantize_dynamic(
                self.model, {torch.nn.Linear}, dtype=torch.qint8
            )

    def run(self, shape, seed):
        torch = self.torch
        ids = torch.tensor(random_ids(shape, self.vocab, seed))
        mask = torch.ones_like(ids)
        encode = shape["mode"] == "encode"
        new_tokens = 1 if encode else shape["new_tokens"]
        with torch.inference_mode():
            begin = time.perf_counter()
            if encode and self.family == "t5":
                self.model.encoder(input_ids=ids, attention_mask=mask)
                return time.perf_counter() - begin
            out = generate(self.model, ids, mask, new_tokens, num_beams=shape["num_beams"])
            seconds = time.perf_counter() - begin
        prompt = 1 if self.family == "t5" else shape["input_tokens"]
        assert out.shape[1] - prompt == new_tokens, out.shape
        return seconds


class CTranslate2:
    def __init__(self, directory, name, dtype, threads):
        import ctranslate2

        self.family = SHAPES[name][0]
        self.vocab = SHAPES[name][1]["vocab_size"]
        options = dict(
            device="cpu",
            compute_type="int8" if dtype == "int8" else "float32",
            inter_threads=1,
            intra_threads=threads,
        )
        if self.family == "t5":
            self.translator = ctranslate2.Translator(directory + ".ct2", **options)
            self.encoder = ctranslate2.Encoder(directory + ".ct2-encoder", **options)
        else:
            self.generator = ctranslate2.Generator(directory + ".ct2", **options)
        self.tokens = tokens_of(self.vocab)

    def run(self, shape, seed):
        rows = random_ids(shape, self.vocab, seed)
        encode = shape["mode"] == "encode"
        if encode and self.family == "t5":
            ids = rows.tolist()
            begin = time.perf_counter()
            self.encoder.forward_batch(ids)
            return time.perf_counter() - begin
        new_tokens = 1 if encode else shape["new_tokens"]
        tokens = [[self.tokens[i] for i in row] for row in rows]
        begin = time.perf_counter()
        if self.family == "t5":
            results = self.translator.translate_batch(
                tokens,
                beam_size=shape["num_beams"],
                max_input_length=0,
                min_decoding_length=new_tokens,
                max_decoding_length=new_tokens,
            )
            seconds = time.perf_counter() - begin
            lengths = {len(result.hypotheses[0]) for result in results}
        else:
            results = self.generator.generate_batch(
                tokens,
                beam_size=shape["num_beams"],
                sampling_topk=1,
                include_prompt_in_result=False,
                min_length=new_tokens,
                max_length=new_tokens,
            )
            seconds = time.perf_counter() - begin
            lengths = {len(result.sequences_ids[0]) for result in results}
        assert lengths == {new_tokens}, lengths
        return seconds


def worker(engine, directory, name, dtype, threads):
    try:
        runner = {"transformers": Transformers, "ctranslate2": CTranslate2}[engine](
            directory, name, dtype, threads
        )
    except Exception as error:  # reported as a missing row, with its reason
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps({"seconds": runner.run(command["shape"], command["seed"])}), flush=True)


class Peer:
    """CTranslate2 or transformers in a worker process, which loads one model in one dtype. The
    process is stopped (SIGSTOP) except during its measurements."""

    def __init__(self, engine, directory, name, dtype, threads):
        environment = dict(
            os.environ,
            PYTHONWARNINGS="ignore",
            TQDM_DISABLE="1",
            OMP_NUM_THREADS=str(threads),
            MKL_NUM_THREADS=str(threads),
        )
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", engine, directory, name, dtype, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        first = json.loads(self.process.stdout.readline() or '{"error": "the worker died"}')
        self.error = first.get("error")
        if not self.error:
            self.process.send_signal(signal.SIGSTOP)

    def measure(self, shape, repetitions, warm_up):
        self.process.send_signal(signal.SIGCONT)
        seconds = []
        for seed in range(warm_up + repetitions):
            print(json.dumps({"shape": shape, "seed": seed}), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
            if not answer:
                raise RuntimeError("a worker died: see its messages above")
            seconds.append(json.loads(answer)["seconds"])
        self.process.send_signal(signal.SIGSTOP)
        return seconds[warm_up:]

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def quintet_times(args, directory, name, dtype, threads, shapes, repetitions):
    """Returns ({label: [milliseconds]}, the conditions that quintet bench reports). All repetitions
    of one input shape run in the same process."""
    gpt2 = SHAPES[name][0] == "gpt2"
    times, conditions = {}, None
    for shape in shapes:
        encode = shape["mode"] == "encode"
        report = bench(
            args.quintet,
            model=directory,
            device="cpu",
            dtype=dtype,
            threads=threads,
            mode="generate" if gpt2 else shape["mode"],
            batch=shape["batch"],
            input_tokens=shape["input_tokens"],
            num_beams=shape["num_beams"],
            new_tokens=1 if encode else shape["new_tokens"],
            repetitions=repetitions,
            warmup=1,
        )
        conditions = report["conditions"]
        times[label(shape)] = report["rows"][0]["all_wall_ms"]
    return times, conditions


# ---- The comparison ----


def compare(args, name, dtype, threads):
    directory = os.path.join(args.work, name)
    shapes = shapes_of(name, args)
    times = {engine: {label(s): [] for s in shapes} for engine in ["quintet"] + args.peers}
    peers, missing = {}, {}
    for engine in args.peers:
        peer = Peer(engine, directory, name, dtype, threads)
        if peer.error:
            missing[engine] = peer.error
            print(f"# {engine} {name} {dtype}: {peer.error}", file=sys.stderr)
        else:
            peers[engine] = peer
    conditions = None
    for turn in range(args.rounds):
        own, conditions = quintet_times(
            args, directory, name, dtype, threads, shapes, args.repetitions
        )
        for key, values in own.items():
            times["quintet"][key] += values
        for engine, peer in peers.items():
            for shape in shapes:
                seconds = peer.measure(shape, args.repetitions, 1 if turn == 0 else 0)
                times[engine][label(shape)] += [1e3 * s for s in seconds]
    for peer in peers.values():
        peer.close()
    rows = []
    for shape in shapes:
        row = dict(model=name, dtype=dtype, threads=threads, shape=label(shape), **shape)
        for engine in times:
            values = times[engine][label(shape)]
            row[engine + "_ms"] = statistics.median(values) if values else None
            row[engine + "_all_ms"] = values
        for engine in args.peers:
            row["over_" + engine] = (
                row[engine + "_ms"] / row["quintet_ms"] if row[engine + "_ms"] else None
            )
        rows.append(row)
    return rows, conditions, missing


def show(row, peers):
    cells = [
        f"{row['model']:9s} {row['dtype']:5s} {row['threads']:3d} {row['shape']:24s} "
        f"{row['quintet_ms']:10.1f}"
    ]
    for engine in peers:
        ms, ratio = row[engine + "_ms"], row["over_" + engine]
        cells.append(f"{ms:11.1f} {ratio:5.2f}x" if ms else f"{'-':>11s} {'-':>6s}")
    print(" ".join(cells), flush=True)


def versions():
    found = {}
    for package in ("torch", "transformers", "ctranslate2", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        engine, directory, name, dtype, threads = sys.argv[2:]
        worker(engine, directory, name, dtype, int(threads))
        return
    work = "folder for the checkpoints (2.5 GB for all three); kept for the next run"
    parser = bench_parser(__doc__, work)
    parser.add_argument("--out", required=True, help="directory for peers.json")
    parser.add_argument(
        "--models", nargs="+", default=["t5-small", "t5-base", "gpt2"], choices=list(SHAPES)
    )
    parser.add_argument("--dtypes", nargs="+", default=["f32", "int8"], choices=["f32", "int8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--peers",
        nargs="*",
        default=["ctranslate2", "transformers"],
        choices=["ctranslate2", "transformers"],
    )
    parser.add_argument("--encode", nargs="*", default=["1x128", "8x128", "1x2048"])
    parser.add_argument("--generate", nargs="*", type=int, default=[1, 8], help="rows")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=1, help="in each round")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    os.makedirs(args.out, exist_ok=True)
    for name in args.models:
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); "
                f"import peers; peers.prepare({name!r}, {args.work!r})",
            ],
            check=True,
        )
    report = dict(
        versions=versions(),
        machine=platform.processor() or platform.machine(),
        cores=os.cpu_count(),
        arguments={k: v for k, v in vars(args).items() if k not in ("work", "out", "quintet")},
        missing={},
        rows=[],
    )
    heading = "".join(f" {engine:>12s} {'ratio':>5s}" for engine in args.peers)
    print(f"{'model':9s} {'dtype':5s} thr {'shape':24s} {'quintet ms':>10s}{heading}")
    for threads in args.threads:
        for name in args.models:
            for dtype in args.dtypes:
                rows, conditions, missing = compare(args, name, dtype, threads)
                report["quintet"] = {
                    k: conditions[k] for k in ("version", "commit", "cpu", "system")
                }
                for engine, reason in missing.items():
                    report["missing"][f"{engine} {name} {dtype}"] = reason
                report["rows"] += rows
                for row in rows:
                    show(row, args.peers)
                # After each row, since a long run may be interrupted.
                write_report(os.path.join(args.out, "peers.json"), report)


if __name__ == "__main__":
    main()

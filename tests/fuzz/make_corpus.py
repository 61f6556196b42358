#!/usr/bin/env python3
"""Writes tests/fuzz/corpus from test data: small files that each fuzz target accepts.

The fuzzer starts from these files. Needs protoc. The output depends only on the input files. Files
that a fuzzer found (finding-*) are not changed.
usage: tests/fuzz/make_corpus.py
"""

import json
import struct
import subprocess

from corpus_files import ROOT, compact, write
from http_corpus import make_http_json, make_http_server, make_trace_context


def safetensors(header, data_bytes):
    text = compact(header)
    return (
        struct.pack("<Q", len(text))
        + text
        + bytes(range(256)) * (data_bytes // 256)
        + bytes(data_bytes % 256)
    )


def make_safetensors():
    types = {
        "BOOL": 1,
        "U8": 1,
        "I8": 1,
        "F8_E5M2": 1,
        "F8_E4M3": 1,
        "I16": 2,
        "U16": 2,
        "F16": 2,
        "BF16": 2,
        "I32": 4,
        "U32": 4,
        "F32": 4,
        "F64": 8,
        "I64": 8,
        "U64": 8,
    }
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, size in types.items():
        header[f"encoder.{name}"] = {
            "dtype": name,
            "shape": [2, 3],
            "data_offsets": [end, end + 6 * size],
        }
        end += 6 * size
    header["empty"] = {"dtype": "F32", "shape": [0, 7], "data_offsets": [end, end]}
    header["scalar"] = {"dtype": "F32", "shape": [], "data_offsets": [end, end + 4]}
    write("safetensors", "types", safetensors(header, end + 4))
    # The names and dtypes of a real checkpoint, with each tensor cut to one row.
    for case in ("t5-v1_0", "gpt2"):
        data = (ROOT / "tests/golden/cases" / case / "model.safetensors").read_bytes()
        full = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
        header, end = {}, 0
        for name, entry in list(full.items())[:24]:
            if name != "__metadata__":
                columns = entry["shape"][-1]
                size = columns * types[entry["dtype"]]
                header[name] = {
                    "dtype": entry["dtype"],
                    "shape": [columns],
                    "data_offsets": [end, end + size],
                }
                end += size
        write("safetensors", case, safetensors(header, end))


# A T5 encoder of one layer: name in Hugging Face's files, name in GGUF, shape.
ENCODER = [("shared", "token_embd", [32, 32])]
for ours, theirs in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_o")):
    ENCODER.append((f"encoder.block.0.layer.0.SelfAttention.{ours}", theirs, [32, 32]))
for ours, theirs in (("wi_0", "ffn_gate"), ("wi_1", "ffn_up"), ("wo", "ffn_down")):
    ENCODER.append((f"encoder.block.0.layer.1.DenseReluDense.{ours}", theirs, [32, 32]))
ENCODER += [
    ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "attn_rel_b", [32, 1]),
    ("encoder.block.0.layer.0.layer_norm", "attn_norm", [32]),
    ("encoder.block.0.layer.1.layer_norm", "ffn_norm", [32]),
    ("encoder.final_layer_norm", "enc.output_norm", [32]),
]


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_key(name, kind, value):
    return gguf_text(name) + struct.pack("<I", kind) + value


def make_gguf():
    """Writes ENCODER and a tokenizer of 10 pieces as GGUF, one file for each block format."""
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "<0x41>", "[PAD8]", "[PAD9]"]
    types = [3, 3, 2, 1, 1, 1, 4, 6, 5, 5]
    texts = b"".join(struct.pack("<Q", len(t.encode())) + t.encode() for t in tokens)

    def array(kind, count, values):
        return struct.pack("<IQ", kind, count) + values

    count = len(tokens)
    keys = [
        gguf_key("general.architecture", 8, gguf_text("t5encoder")),
        gguf_key("t5encoder.block_count", 4, struct.pack("<I", 1)),
        gguf_key("t5encoder.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-6)),
        gguf_key("tokenizer.ggml.model", 8, gguf_text("t5")),
        gguf_key("tokenizer.ggml.tokens", 9, array(8, count, texts)),
        gguf_key(
            "tokenizer.ggml.scores", 9, array(6, count, struct.pack(f"<{count}f", *[-1] * count))
        ),
        gguf_key(
            "tokenizer.ggml.token_type", 9, array(5, count, struct.pack(f"<{count}i", *types))
        ),
        gguf_key("tokenizer.ggml.add_space_prefix", 7, b"\1"),
    ]
    blocks = {"q8_0": (8, 34), "q5_1": (7, 24), "q4_0": (2, 18)}
    for file, (number, size) in blocks.items():
        infos, data = b"", b""
        for _, name, shape in ENCODER:
            matrix = shape == [32, 32]
            whole = name if "." in name or name == "token_embd" else f"enc.blk.0.{name}"
            dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
            raw = (b"\0\x3c" + bytes(range(size - 2))) * 32 if matrix else bytes(4 * shape[0])
            infos += gguf_text(whole + ".weight") + struct.pack("<I", len(shape)) + dims
            infos += struct.pack("<IQ", number if matrix else 0, len(data))
            data += raw + bytes(-len(raw) % 32)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(ENCODER), len(keys)) + b"".join(keys) + infos
        write("gguf", file, head + bytes(-len(head) % 32) + data)


def make_text_encoder():
    """Writes ENCODER as e4m3: without scales, and with each kind of scale and its declaration."""
    for file in ("plain", "scaled_fp8", "comfy_quant", "metadata"):
        entries, metadata = [], {"format": "pt"}
        if file == "scaled_fp8":
            entries.append(("scaled_fp8", "F8_E4M3", [0], b""))
        layers = {}
        for name, _, shape in ENCODER:
            values = shape[0] * (shape[1] if len(shape) > 1 else 1)
            matrix = shape == [32, 32] and name != "shared"
            kind, size = ("F8_E4M3", 1) if matrix else ("BF16", 2)
            entries.append(
                (
                    f"{name}.weight",
                    kind,
                    shape,
                    bytes(64) * (values * size // 64) + bytes(values * size % 64),
                )
            )
            if not matrix or file == "plain":
                continue
            row = len(layers) % 2 == 1
            scale = "scale_weight" if file == "scaled_fp8" else "weight_scale"
            scales = struct.pack("<f", 0.5) * (32 if row else 1)
            entries.append((f"{name}.{scale}", "F32", [32] if row else [], scales))
            layers[name] = {"format": "float8_e4m3fn"}
            if file == "comfy_quant":
                marker = compact(layers[name])
                entries.append((f"{name}.comfy_quant", "U8", [len(marker)], marker))
        if file == "metadata":
            metadata["_quantization_metadata"] = compact({"layers": layers}).decode()
        header, data = {"__metadata__": metadata}, b""
        for name, kind, shape, raw in entries:
            span = [len(data), len(data) + len(raw)]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": span}
            data += raw
        text = compact(header)
        write("text_encoder", file, struct.pack("<Q", len(text)) + text + data)


def make_adapter():
    """Adapters for the tiny T5 of tests/fuzz/adapter.cc."""
    attention = "encoder.block.0.layer.0.SelfAttention."
    sizes = {attention + "q": (4, 4), "decoder.block.0.layer.2.DenseReluDense.wo": (4, 6)}

    def tensors(names):
        header, end = {}, 0
        for module, (rows, columns) in sizes.items():
            for name, shape in names(module, rows, columns):
                size = 4 * (shape[0] * shape[1] if shape else 1)
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
                end += size
        text = compact(header)
        return struct.pack("<Q", len(text)) + text + bytes(end)

    def peft(module, rows, columns):
        yield f"base_model.model.{module}.lora_A.weight", [2, columns]
        yield f"base_model.model.{module}.lora_B.weight", [rows, 2]

    def kohya(module, rows, columns):
        key = "lora_te3_" + module.replace(".", "_")
        yield f"{key}.lora_down.weight", [2, columns]
        yield f"{key}.lora_up.weight", [rows, 2]
        yield f"{key}.alpha", []

    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": list(sizes)}
    patterns = {
        **config,
        "r": 3,
        "target_modules": "(encoder.*\\.q|decoder.*wo)",
        "rank_pattern": {"q": 2, ".*\\.wo": 2},
        "alpha_pattern": {"^decoder.*": 1.5},
        "layers_to_transform": [0],
        "layers_pattern": "block",
        "exclude_modules": ["k"],
    }
    for name, fields in (("list", config), ("patterns", patterns)):
        text = compact(fields)
        write("adapter", name, struct.pack("<H", len(text)) + text + tensors(peft))
    write("adapter", "kohya", struct.pack("<H", 0) + tensors(kohya))


def shrink_bpe(tokenizer):
    model = tokenizer["model"]
    added = tokenizer["added_tokens"][:4]
    merges = [
        merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"][:24]
    ]
    keep = [token["content"] for token in added] + [model.get("unk_token")]
    keep += [piece for piece in model["vocab"] if piece.startswith("<0x")]
    for left, right in merges:
        keep += [
            left,
            right,
            left + right.removeprefix(model.get("continuing_subword_prefix") or ""),
        ]
    keep += list(model["vocab"])[4:60]
    model["vocab"] = {
        piece: i for i, piece in enumerate(dict.fromkeys(p for p in keep if p in model["vocab"]))
    }
    model["merges"] = merges
    renumber(added, model["vocab"], len(model["vocab"]))
    tokenizer["added_tokens"] = added


def shrink_unigram(tokenizer):
    model = tokenizer["model"]
    added = tokenizer["added_tokens"][:4]
    model["vocab"] = model["vocab"][:90]
    renumber(added, {piece: i for i, (piece, _) in enumerate(model["vocab"])}, len(model["vocab"]))
    tokenizer["added_tokens"] = added
    if tokenizer["normalizer"]["type"] == "Precompiled":
        tokenizer["normalizer"] = {
            "type": "Precompiled",
            "precompiled_charsmap": "CAAAAAEAAAACAAAAeAB5eQA=",
        }


def renumber(added, vocab, next_id):
    for token in added:
        if token["content"] not in vocab:
            token["id"], next_id = next_id, next_id + 1
        else:
            token["id"] = vocab[token["content"]]


def make_tokenizer_json():
    text = "\0The naïve  fiancée's 123 ﬁ Å\u00a0x</s> don't\n"
    for path in sorted((ROOT / "tests/data/tokenizers").glob("*/tokenizer.json")):
        tokenizer = json.loads(path.read_text())
        if "merges" in tokenizer["model"]:
            shrink_bpe(tokenizer)
        else:
            shrink_unigram(tokenizer)
        if tokenizer.get("post_processor", {}) and "special_tokens" in (
            tokenizer["post_processor"] or {}
        ):
            ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
            for name, special in tokenizer["post_processor"]["special_tokens"].items():
                special["ids"] = [ids.get(name, 0)]
        write("tokenizer_json", path.parent.name, compact(tokenizer) + text.encode())


def message(proto, include, kind, text):
    return subprocess.run(
        ["protoc", "-I", ".", f"--encode={kind}", proto],
        cwd=ROOT / ("proto" if include == "proto" else "."),
        input=text.encode(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


def make_sentencepiece():
    pieces = [
        ("<unk>", 0, 2),
        ("</s>", 0, 3),
        ("<pad>", 0, 3),
        ("▁", -1, 1),
        ("a", -2, 1),
        ("b", -2.5, 1),
        ("ab", -3, 1),
        ("▁ab", -3.5, 1),
        ("é", -4, 1),
        ("USER", 0, 4),
        ("ba", -5, 5),
        ("aba", -6, 1),
    ]
    body = "".join(
        f'pieces {{ piece: "{piece}" score: {score} type: {kind} }}\n'
        for piece, score, kind in pieces
    )
    charsmap = (
        r'"\020\000\000\000\001\000\000\000\002\004\000\000'
        r'\003\010\000\000\004\000\000\000x\000yy\000"'
    )
    for name, normalizer in (("plain", ""), ("mapped", f"precompiled_charsmap: {charsmap}")):
        text = body + f"normalizer_spec {{ {normalizer} }}\n"
        write(
            "sentencepiece",
            name,
            message("tests/models/tokenizers/sentencepiece.proto", ".", "quintet.spm.Model", text),
        )
    for name in ("sp-bpe-identity-bytes", "sp-unigram-identity-bytes"):
        write(
            "sentencepiece",
            name,
            (ROOT / "tests/data/tokenizers" / name / "spiece.model").read_bytes(),
        )


def make_config():
    generation = compact(
        {
            "max_length": 64,
            "num_beams": 4,
            "early_stopping": "never",
            "length_penalty": 0.6,
            "top_k": 0,
            "eos_token_id": [1, 2],
            "bad_words_ids": [[3, 4]],
            "suppress_tokens": [5],
            "do_sample": True,
            "temperature": 0.7,
            "forced_eos_token_id": 1,
            "decoder_start_token_id": 0,
        }
    )
    for case in (
        "fat5-alibi-asym",
        "fat5-fire-32",
        "fat5-rope-half-interleaved",
        "fat5-tokcls",
        "gpt2",
        "gpt2-variant",
        "longt5-tglobal",
        "mt5",
        "t5-encoder",
        "t5-qa",
        "t5-v1_1",
        "umt5",
    ):
        config = json.loads((ROOT / "tests/golden/cases" / case / "config.json").read_text())
        write("config", case, compact(config) + b"\0" + generation)


def make_request():
    calls = ["Generate", "Encode", "Score", "Classify", "Tokenize", "Detokenize"]
    call = 'call { model: "m" request_id: "r-1" priority: PRIORITY_HIGH truncate: true }\n'
    ids = "token_ids { ids: [3, 4, 5] }"
    seeds = [
        ("greedy", 0, "Generate", call + 'input { text: "phoneme" }\n'),
        (
            "beams",
            0,
            "Generate",
            'input { text: "quintet" } decoding { num_beams: 4 '
            "num_return_sequences: 2 length_penalty: 0.6 early_stopping: EARLY_STOPPING_FIRST "
            "patience: 2 no_repeat_ngram_size: 3 return_scores: true max_new_tokens: 9 "
            "min_new_tokens: 2 }",
        ),
        (
            "sampling",
            1,
            "Generate",
            f"input {{ {ids} }} decoding {{ do_sample: true seed: 7 "
            "temperature: 0.5 top_k: 9 top_p: 0.9 typical_p: 0.9 min_p: 0.1 "
            "repetition_penalty: 1.2 num_return_sequences: 3 echo: true }",
        ),
        (
            "constraints",
            0,
            "Generate",
            'input { text: "abc" } decoding { suppress_tokens: [1, 2] '
            "begin_suppress_tokens: 3 bad_words_ids { ids: [4, 5] } forced_bos_token_id: 6 "
            "forced_eos_token_ids: 7 eos_token_ids: 8 pad_token_id: 9 decoder_start_token_id: 10 "
            'decoder_prefix { text: "F" } stop: "X" include_stop: true logprobs: true '
            "top_logprobs: 2 }",
        ),
        (
            "encode",
            0,
            "Encode",
            'inputs { text: "a" } inputs { ' + ids + " } options { "
            "pooling: POOLING_LAST normalize: true vector_type: VECTOR_TYPE_BF16 }",
        ),
        (
            "score",
            0,
            "Score",
            'input { text: "a" } targets { text: "AH0" } targets { ' + ids + " } top_logprobs: 3",
        ),
        ("classify", 2, "Classify", f"inputs {{ {ids} }} top_k: 2 max_answer_tokens: 5"),
        ("tokenize", 0, "Tokenize", 'text: "naïve </s> x"'),
        ("detokenize", 0, "Detokenize", "token_ids: [3, 4, 1] skip_special_tokens: true"),
    ]
    for name, model, rpc, text in seeds:
        body = message("quintet/v1/inference.proto", "proto", f"quintet.v1.{rpc}Request", text)
        write("request", name, bytes([model, calls.index(rpc)]) + body)


def make_kserve():
    def tensor(name, datatype, shape, contents):
        return (
            f'inputs {{ name: "{name}" datatype: "{datatype}" shape: {shape} '
            f"contents {{ {contents} }} }}"
        )

    def raw(name, datatype, shape, data):
        text = "".join(f"\\x{byte:02x}" for byte in data)
        return (
            f'inputs {{ name: "{name}" datatype: "{datatype}" shape: {shape} }} '
            f'raw_input_contents: "{text}"'
        )

    def parameter(name, value):
        return f'parameters {{ key: "{name}" value {{ {value} }} }}'

    text = tensor("text_input", "BYTES", [1, 1], 'bytes_contents: "phoneme"')
    two = struct.pack("<I1sI2s", 1, b"a", 2, b"bc")
    ids = raw("input_ids", "INT64", [2, 2], struct.pack("<4q", 3, 4, 5, 0))
    seeds = [
        ("text", 0, 0, text + ' id: "r-1" model_name: "m"'),
        ("raw", 0, 0, raw("text_input", "BYTES", [2], two) + ' outputs { name: "output_ids" }'),
        ("ids", 1, 0, ids + raw("input_lengths", "INT32", [2, 1], struct.pack("<2i", 2, 1))),
        (
            "mask",
            1,
            0,
            ids + raw("attention_mask", "INT32", [2, 2], struct.pack("<4i", 1, 1, 0, 1)),
        ),
        ("classify", 2, 0, ids + ' outputs { name: "offsets" } outputs { name: "logits" }'),
        (
            "stream",
            0,
            1,
            text
            + parameter("stream", "bool_param: true")
            + parameter("num_beams", "int64_param: 3")
            + parameter("stop", 'string_param: \'["X", "Y"]\'')
            + parameter("early_stopping", 'string_param: "never"')
            + parameter("length_penalty", "double_param: 0.5"),
        ),
        (
            "sampling",
            0,
            0,
            text
            + tensor(
                "sampling_parameters",
                "BYTES",
                [1],
                'bytes_contents: \'{"n": 2, "temperature": 0.5, "bad_words_ids": [[3, 4]]}\'',
            )
            + ' outputs { name: "text_output" } outputs { name: "output_log_probs" }',
        ),
        (
            "score",
            0,
            0,
            text
            + tensor("target_text", "BYTES", [1, 2], 'bytes_contents: "A" bytes_contents: "B"')
            + ' outputs { name: "log_prob" } outputs { name: "token_log_probs" }',
        ),
        (
            "encode",
            0,
            0,
            text
            + parameter("pooling", 'string_param: "max"')
            + parameter("vector_type", 'string_param: "bf16"')
            + parameter("priority", "uint64_param: 1")
            + ' outputs { name: "embedding" }',
        ),
        ("states", 0, 0, text + ' outputs { name: "last_hidden_state" }'),
    ]
    for name, model, streams, body in seeds:
        encoded = message(
            "inference/grpc_inference.proto", "proto", "inference.ModelInferRequest", body
        )
        write("kserve", name, bytes([model, streams]) + encoded)


if __name__ == "__main__":
    make_safetensors()
    make_gguf()
    make_text_encoder()
    make_adapter()
    make_tokenizer_json()
    make_sentencepiece()
    make_config()
    make_http_json()
    make_http_server()
    make_trace_context()
    make_request()
    make_kserve()

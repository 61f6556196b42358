"""Tests the file formats of T5 text encoders on the command line: GGUF, one safetensors file and
diffusers pipelines, also damaged files; and the same padding as in the pipelines."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from server_process import BINARY, CASES, SOURCE

FORMATS = SOURCE / "tests/data/formats"
IDS = '{"token_ids": [5, 9, 17, 1]}\n'


def run(*arguments, stdin=IDS, code=0):
    done = subprocess.run(
        [BINARY, *map(str, arguments)],
        input=stdin.encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return done.stdout if code == 0 else done.stderr.decode()


def encode(model, *flags, stdin=IDS):
    """The hidden states of each line as an array [rows, columns]."""
    out = run(
        "encode", model, "--device", "cpu", "--dtype", "f32", "--pooling", "none", "--input",
        "json", *flags, stdin=stdin,
    )  # fmt: skip
    return [np.array(json.loads(line)["embeddings"]) for line in out.decode().splitlines()]


def single_file(path: Path, golden: str) -> Path:
    """Writes the encoder of a golden case as one safetensors file without config.json."""
    raw = (CASES / golden / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data, out = json.loads(raw[8 : 8 + size]), b"", {}
    for name, entry in header.items():
        if name.startswith(("encoder.", "shared.")):
            begin, end = entry["data_offsets"]
            part = raw[8 + size + begin : 8 + size + end]
            out[name] = entry | {"data_offsets": [len(data), len(data) + len(part)]}
            data += part
    text = json.dumps(out).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_gguf_gives_the_states_of_its_decoded_checkpoint():
    (ours,), (expected,) = encode(FORMATS / "t5-encoder.gguf"), encode(FORMATS / "t5-encoder")
    assert np.array_equal(ours, expected)


def test_text_is_tokenized_by_the_file_or_by_another_tokenizer(tmp_path):
    gguf, spiece = FORMATS / "t5-encoder.gguf", SOURCE / "tests/data/tokenizers/sp-unigram-nmt_nfkc"
    text = '{"text": "a b"}\n'
    (states,) = encode(gguf, stdin=text)
    for tokenizer in (spiece, spiece / "spiece.model", gguf):
        (other,) = encode(FORMATS / "t5-encoder", "--tokenizer", tokenizer, stdin=text)
        assert np.array_equal(states, other)
    message = run("encode", gguf, "--tokenizer", tmp_path / "none", code=3)
    assert "no such" in message


@pytest.mark.parametrize("golden", ["t5-v1_1", "umt5"])
def test_one_safetensors_file_needs_no_configuration(tmp_path, golden):
    (ours,) = encode(single_file(tmp_path / "t5xxl.safetensors", golden))
    config = json.loads((CASES / golden / "config.json").read_text())
    folder = tmp_path / "encoder"
    folder.mkdir()
    config["architectures"] = [config["architectures"][0].split("For")[0] + "EncoderModel"]
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(CASES / golden / "model.safetensors", folder)
    (expected,) = encode(folder)
    assert np.array_equal(ours, expected)


def test_a_pipeline_is_its_text_encoder(tmp_path):
    shutil.copytree(CASES / "t5-encoder", tmp_path / "text_encoder_2")
    shutil.copytree(SOURCE / "tests/data/tokenizers/sp-unigram-nmt_nfkc", tmp_path / "tokenizer_2")
    index = {
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    text = '{"text": "a b"}\n'
    states = [encode(path, stdin=text)[0] for path in (tmp_path, tmp_path / "text_encoder_2")]
    assert np.array_equal(*states)
    index["text_encoder"] = ["transformers", "T5EncoderModel"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    message = run("encode", tmp_path, code=3)
    assert "has 2 T5 text encoders" in message and f"{tmp_path}/text_encoder_2" in message


def test_convert_makes_a_directory_of_a_file(tmp_path):
    run("convert", FORMATS / "t5-encoder.gguf", tmp_path / "out", "--verify")
    (ours,), (expected,) = encode(tmp_path / "out"), encode(FORMATS / "t5-encoder")
    assert np.array_equal(ours, expected)
    text = '{"text": "a b"}\n'
    (ours,), (expected,) = (
        encode(path, stdin=text) for path in (tmp_path / "out", FORMATS / "t5-encoder.gguf")
    )
    assert np.array_equal(ours, expected)


def test_inspect_names_the_formats_in_the_file():
    report = json.loads(run("inspect", FORMATS / "t5-encoder.gguf", "--output", "json"))
    assert report["stored_values"]["Q8_0"] > 0 and report["stored_values"]["Q6_K"] > 0
    assert report["tokenizer"]["file"] == "t5-encoder.gguf"


def test_damaged_files_end_with_code_3(tmp_path):
    """Rejects files that are cut at several lengths or have one wrong byte in the header."""
    raw = (FORMATS / "t5-encoder.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    for size in (0, 3, 20, 500, 5000, len(raw) // 2, len(raw) - 100):
        path.write_bytes(raw[:size])
        assert "model.gguf" in run("inspect", path, code=3)
    for at in (4, 8, 16, 24, 40):
        path.write_bytes(raw[:at] + b"\xff" + raw[at + 1 :])
        run("inspect", path, code=3)
    encoder = single_file(tmp_path / "encoder.safetensors", "t5-v1_1").read_bytes()
    for size in (0, 8, 100, len(encoder) - 1):
        (tmp_path / "encoder.safetensors").write_bytes(encoder[:size])
        assert "encoder.safetensors" in run("inspect", tmp_path / "encoder.safetensors", code=3)


def test_padding_equals_that_of_the_pipelines():
    """Compares states with recorded ones that transformers computed with the pipelines' masks."""
    recorded = json.loads((FORMATS / "padded.json").read_text())
    for case in recorded["cases"]:
        model = CASES / case["model"]
        flag = f"{recorded['tokens']}:{case['mode']}"
        line = json.dumps({"token_ids": case["token_ids"]}) + "\n"
        (states,) = encode(model, "--pad-to", flag, stdin=line)
        assert states.shape[0] == recorded["tokens"]
        kept = np.concatenate([states[:, :4], states[:, -4:]], 1)
        assert np.allclose(kept, case["states"], atol=2e-5), (case["model"], case["mode"])


def test_padding_is_checked():
    model = CASES / "t5-encoder"
    for flags in (["--pad-to", "0"], ["--pad-to", "5:mean"], ["--pad-to", "9999"]):
        message = run("encode", model, "--pooling", "none", "--input", "json", *flags, code=2)
        assert "quintet: --pad-to: " in message
    message = run("encode", model, "--pad-to", "5", "--input", "json", code=2)
    assert "needs pooling none" in message

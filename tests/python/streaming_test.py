"""Tests streams: the order of the chunks, and that together they equal the unary response."""

import concurrent.futures

import pytest

from quintet.wire import pb
from server_process import Server, words


def collect(events) -> tuple[dict[int, str], dict[int, list[int]], pb.GenerateResponse]:
    """Reads a stream. Returns its texts and ids by sequence, and the `complete` message.

    Fails if `complete` is not the last message.
    """
    texts: dict[int, str] = {}
    ids: dict[int, list[int]] = {}
    complete = None
    for event in events:
        assert complete is None, "a message after `complete`"
        if event.HasField("complete"):
            complete = event.complete
        else:
            texts[event.chunk.index] = texts.get(event.chunk.index, "") + event.chunk.text
            ids.setdefault(event.chunk.index, []).extend(event.chunk.token_ids)
    assert complete is not None
    return texts, ids, complete


def check(client, value, decoding) -> None:
    unary = client.generate(value, decoding)
    texts, ids, complete = collect(client.stream(value, decoding))
    assert complete.sequences == unary.sequences
    for sequence in unary.sequences:
        assert texts.get(sequence.index, "") == sequence.text
        assert ids.get(sequence.index, []) == list(sequence.token_ids)
    assert set(texts) <= {sequence.index for sequence in unary.sequences}


def test_thousands_of_prompts(client):
    """Streamed text equals the unary response, for 10,000 prompts (row 40 of tests/README.md).

    32 threads stream concurrently; the server therefore batches the streams. The prompts are words
    of the test set and reversed words.
    """
    known = words(6000)
    prompts = known + [word[::-1] for word in known[:4000]]
    assert len(prompts) == 10_000
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        for _ in pool.map(lambda word: check(client, word, {"max_new_tokens": 48}), prompts):
            pass


def test_chunks_come_while_the_text_grows(client):
    events = list(client.stream("a", {"ignore_eos": True, "max_new_tokens": 400}))
    assert len(events) > 10  # chunks waiting for a write may merge, but not all
    assert all(event.HasField("chunk") for event in events[:-1])


@pytest.mark.parametrize(
    "decoding",
    [
        {"do_sample": True, "seed": "3", "temperature": 2.0, "num_return_sequences": 4},
        {"stop": ["AH0"]},
        {"stop": ["AH0", "N", "K L"], "include_stop": True},
        {"ignore_eos": True, "max_new_tokens": 40, "skip_special_tokens": False},
        {"min_new_tokens": 20, "max_new_tokens": 20},
        {"decoder_prefix": {"text": "B AE1"}, "echo": True},
        {"logprobs": True, "top_logprobs": 3},
    ],
    ids="-".join,
)
def test_decoding_options(client, decoding):
    for word in words(20):
        check(client, word, decoding)


def test_beams_send_what_can_not_change_any_more(client):
    for word in words(20):
        unary = client.generate(word, {"num_beams": 4})
        texts, _, complete = collect(client.stream(word, {"num_beams": 4}))
        assert complete.sequences == unary.sequences
        assert unary.sequences[0].text == texts.get(0, "")
    _, _, complete = collect(client.stream("wagner", {"num_beams": 4, "num_return_sequences": 3}))
    assert (
        complete.sequences
        == client.generate("wagner", {"num_beams": 4, "num_return_sequences": 3}).sequences
    )


def test_a_chunk_never_ends_within_a_character(tiny_models):
    """A byte-level model with random weights.

    Most outputs contain both invalid and valid multi-byte characters.
    """
    several_bytes = 0
    with Server(tiny_models["gpt2"]) as server, server.client() as client:
        for seed in range(30):
            decoding = {
                "do_sample": True,
                "seed": str(seed),
                "temperature": 5.0,
                "max_new_tokens": 60,
            }
            check(client, "caf\u00e9 \u65e5\u672c \U0001f600", {**decoding, "echo": True})
            check(client, "abc", decoding)
            several_bytes += sum(
                len(c.encode()) > 1 and c != "\ufffd"
                for c in client.generate("abc", decoding).sequences[0].text
            )
    assert several_bytes > 0


def test_no_text_or_ids_where_none_are_wanted(client):
    texts, ids, complete = collect(client.stream("wagner", {"return_text": False}))
    assert "".join(texts.values()) == "" and ids[0] == list(complete.sequences[0].token_ids)
    texts, ids, complete = collect(client.stream("wagner", {"return_token_ids": False}))
    assert texts[0] == complete.sequences[0].text == "W AE1 G N ER0" and ids.get(0, []) == []

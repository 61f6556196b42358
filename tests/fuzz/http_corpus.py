"""The files of tests/fuzz/corpus for the HTTP API and the headers of a trace."""

from corpus_files import compact, write


def make_http_json():
    """Byte 0 is the index of the route in ApiRoutes()."""
    seeds = {
        "completion": (0, {"prompt": ["ab", [3, 4]], "max_tokens": 5, "n": 2, "best_of": 3}),
        "sampling": (0, {"prompt": "ab", "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": "A"}),
        "options": (
            0,
            {
                "prompt": [3, 4],
                "bad_words_ids": [[1, 2]],
                "decoder_prefix": "W",
                "early_stopping": "never",
                "logprobs": 2,
                "num_beams": 4,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
        "chat": (
            1,
            {
                "messages": [
                    {"role": "system", "content": "a"},
                    {"role": "user", "content": [{"type": "text", "text": "b"}]},
                ],
                "max_completion_tokens": 4,
                "logprobs": True,
                "top_logprobs": 3,
            },
        ),
        "embeddings": (2, {"input": ["a", "b"], "encoding_format": "base64", "pooling": "max"}),
        "embed": (5, {"inputs": ["a", [3]], "normalize": False, "truncate": True}),
        "similarity": (8, {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}),
        "rerank": (9, {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True}),
        "predict": (10, {"inputs": ["a", "b"], "raw_scores": True}),
        "tokenize": (11, {"inputs": ["a", "b"], "add_special_tokens": False}),
        "decode": (12, {"ids": [[3, 4], [5]], "skip_special_tokens": False}),
        "generate": (
            15,
            {
                "inputs": "ab",
                "parameters": {"best_of": 2, "details": True, "top_n_tokens": 2, "top_k": 5},
                "stream": True,
            },
        ),
        "score": (17, {"text_1": "a", "text_2": ["b", "c"]}),
        "jina": (18, {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
        "classify": (19, {"input": ["a", "b"]}),
        "next_token": (
            20,
            {"query": "a", "items": ["b", "c"], "label_token_ids": [3, 4], "item_first": True},
        ),
    }
    for name, (route, body) in seeds.items():
        write("http_json", name, bytes([route]) + compact(body))


def make_http_server():
    """Byte 0 selects the sizes of the pieces in which the bytes are sent."""
    post = "POST /p/x HTTP/1.1\r\nHost: a\r\n"
    seeds = {
        "get": (0, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"),
        "pieces": (129, "GET /a?b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        "head": (0, "HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n"),
        "body": (140, post + "Content-Length: 3\r\n\r\nabc"),
        "chunked": (131, post + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        "continue": (0, post + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"),
        "smuggled": (0, post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        "stream": (0, "POST /s HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" * 2),
        "old_stream": (0, "POST /s HTTP/1.0\r\nContent-Length: 0\r\n\r\n"),
        "large": (0, post + "Content-Length: 5000\r\n\r\n" + "a" * 5000),
        "long_head": (0, "GET /a HTTP/1.1\r\nHost: a\r\nX: " + "b" * 9000 + "\r\n\r\n"),
        "garbage": (200, "\0\1\2 / HTTP/9.9\r\n\r\n"),
    }
    for name, (pieces, text) in seeds.items():
        write("http_server", name, bytes([pieces]) + text.encode())


def make_trace_context():
    parent = "p00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for name, lines in {
        "parent": [parent],
        "later_version": ["pcc" + parent[3:] + "-more"],
        "state": [parent, "trojo=00f067aa0ba902b7, ,congo=t61rcWkgMzE"],
        "states": [parent, "ta=1", "tb@c=2"],
        "several_parents": [parent, parent],
        "zeros": ["p00-" + "0" * 32 + "-" + "0" * 16 + "-00"],
        "long_state": [parent, "ta=" + "v" * 256, "tb=" + "v" * 250],
    }.items():
        write("trace_context", name, "\n".join(lines).encode())

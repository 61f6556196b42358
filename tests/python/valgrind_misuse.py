"""Makes the wrong calls of package_misuse_test.py and one call of each method, for valgrind:

    PYTHONMALLOC=malloc valgrind --error-exitcode=99 --suppressions=tests/python/valgrind.supp \\
      .venv/bin/python tests/python/valgrind_misuse.py
"""

from server_process import G2P  # first: it makes the package importable

import package_misuse_test
import quintet

with quintet.Model(G2P, device="cpu", cache_memory=64, threads=1) as model:
    for expected, words, call in package_misuse_test.WRONG:
        try:
            call(model)
        except expected:
            continue
        raise AssertionError(f"no error: {words}")
    assert model.generate("a").text == "EY1"
    assert model.encode("a").shape == (256,)
    assert len(model.score("a", ["b"]).logprobs) == 1
    assert "".join(chunk.text for chunk in model.stream("a")) == "EY1"
print(len(package_misuse_test.WRONG), "wrong calls")

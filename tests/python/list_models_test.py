"""Tests the RPC ListModels with real clients, and that errors about an unknown or missing model
name list the models that are served."""

import asyncio
import dataclasses
import hashlib

import grpc
import pytest

import quintet
from server_process import G2P, Server, eventually, failure_of

NAMES = ["t5-encoder", "t5-seqcls", "gpt2"]


@pytest.fixture(scope="module")
def several(tiny_models):
    with Server(*(tiny_models[name] for name in NAMES), G2P, dtype="f32") as running:
        yield running


def test_every_model_with_its_properties(several):
    with quintet.Client(several.target) as client:
        models = client.list_models()
    assert [model.name for model in models] == [*NAMES, "g2p"]
    assert all(model.ready for model in models)
    assert {(model.device, model.dtype) for model in models} == {("cpu", "f32")}
    by_name = {model.name: model for model in models}
    assert by_name["g2p"].tasks == ["generate", "encode", "score"]
    assert by_name["t5-encoder"].tasks == ["encode"]
    assert by_name["t5-seqcls"].tasks == ["encode", "classify"]
    assert (by_name["g2p"].family, by_name["gpt2"].family) == ("t5", "gpt2")
    assert by_name["t5-encoder"].max_new_tokens == 0
    for name in (*NAMES, "g2p"):
        with quintet.Client(several.target, model=name) as client:
            info, model = client.info(), by_name[name]
        for field in ("family", "head", "device", "dtype", "parameters"):
            assert getattr(info, field) == getattr(model, field), field
    # max_input_tokens is 4096, the value of --max-input-tokens, for g2p. For gpt2 it is the model's
    # number of positions, which is smaller.
    assert by_name["g2p"].max_input_tokens == 4096
    assert 0 < by_name["gpt2"].max_input_tokens < 4096
    assert by_name["g2p"].max_new_tokens == by_name["gpt2"].max_new_tokens > 0


def test_the_tasks_are_those_that_calls_can_use(several):
    calls = {
        "generate": lambda client: client.generate("a", max_new_tokens=1),
        "encode": lambda client: client.encode("a"),
        "score": lambda client: client.score("a", ["b"]),
        "classify": lambda client: client.classify("a"),
    }
    with quintet.Client(several.target) as client:
        models = client.list_models()
    for model in models:
        with quintet.Client(several.target, model=model.name) as client:
            for task, call in calls.items():
                if task in model.tasks:
                    call(client)
                else:
                    with pytest.raises(quintet.FailedPreconditionError):
                        call(client)


def test_both_clients_return_the_same(several):
    async def listed():
        async with quintet.AsyncClient(several.target) as client:
            return await client.list_models()

    with quintet.Client(several.target, model="not-served") as client:
        models = client.list_models()
        assert [dataclasses.asdict(m) for m in asyncio.run(listed())] == [
            dataclasses.asdict(m) for m in models
        ]
    with pytest.raises(quintet.FailedPreconditionError, match="closed"):
        client.list_models()


def test_a_key_is_needed_as_for_every_method(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(hashlib.sha256(b"key").hexdigest() + " low\n")
    keys.chmod(0o600)
    with Server(G2P, api_key_file=keys, access_log=True) as server:
        for key, code in ((None, "UNAUTHENTICATED"), ("other", "PERMISSION_DENIED")):
            with quintet.Client(server.target, api_key=key) as client:
                with pytest.raises(quintet.Error) as error:
                    client.list_models()
                assert error.value.code == code
        with quintet.Client(server.target, api_key="key") as client:
            assert [model.name for model in client.list_models()] == ["g2p"]
        assert eventually(lambda: '"method":"ListModels","code":"OK"' in server.log())


def test_a_message_that_does_not_parse(several):
    with grpc.insecure_channel(several.target) as channel:
        call = channel.unary_unary("/quintet.v1.Inference/ListModels")
        assert failure_of(lambda: call(b"\xff\xff")).code() == grpc.StatusCode.INVALID_ARGUMENT
        call(b"\x0a\x01a")  # an unknown field is ignored, as protobuf says


def test_errors_name_the_models_that_are_served(several):
    with quintet.Client(several.target, model="absent") as client:
        with pytest.raises(quintet.NotFoundError) as error:
            client.generate("a")
    assert str(error.value) == (
        "call.model: no model of this name is served; served: t5-encoder, t5-seqcls, gpt2, g2p"
    )
    with quintet.Client(several.target) as client:
        with pytest.raises(quintet.InvalidArgumentError) as error:
            client.info()
    assert "must name one of the 4 models served, got none; served: t5-encoder, " in str(
        error.value
    )


def test_the_list_of_names_in_an_error_is_bounded(tiny_models):
    names = [f"{i}" + "\u00e4" * 60 for i in range(8)]  # 121 bytes each
    models = [f"{name}={tiny_models['t5-encoder']}" for name in names]
    with Server(*models, cache_memory=16, encoder_cache_bytes=0) as server:
        with server.client(call={"model": "absent"}) as client:
            message = failure_of(client.info).details()
            assert len(client.list_models().models) == 8
    assert message.endswith(f"served: {', '.join(names[:4])}, ...")

"""Models of the Hugging Face hub: downloads those that the local cache lacks, if the package
huggingface_hub is installed."""

from __future__ import annotations

import logging
import os
from typing import Any

from quintet import _engine
from quintet.errors import Error, InvalidArgumentError, NotFoundError, UnavailableError

_log = logging.getLogger("quintet")
# The files that Quintet reads (models/README.md), as patterns of fnmatch: those of a model, those
# of a pipeline of diffusers, and those of the modules of sentence-transformers.
FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "model_index.json",
    "text_encoder*/config.json",
    "text_encoder*/model.safetensors",
    "text_encoder*/model-*-of-*.safetensors",
    "text_encoder*/model.safetensors.index.json",
    "tokenizer*/*.json",
    "tokenizer*/spiece.model",
    "tokenizer*/merges.txt",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "[0-9]*_*/config.json",
    "[0-9]*_*/model.safetensors",
]


def with_revision(name: str, revision: str | None) -> str:
    """Returns the hub id `name` at a revision, NAME@REVISION."""
    if revision is None:
        return name
    if os.path.lexists(name):
        raise InvalidArgumentError(f"revision: {name} is a path; only an id on the hub has one")
    if "@" in name:
        raise InvalidArgumentError(f"revision: {name} has a revision of its own")
    return f"{name}@{revision}"


def download(name: str, error: Error) -> bool:
    """Downloads the files of the hub id `name` that the cache lacks. Returns whether it downloaded
    them. `error`: the error with which loading the model failed."""
    # The engine names the command for the download if and only if files are missing in the cache.
    if "hf download " not in error.message or os.path.lexists(name):
        return False
    found = _engine.read_hub_id(name)
    if found is None:
        return False
    try:
        from huggingface_hub import constants, snapshot_download, utils
    except ImportError:
        return False
    if constants.HF_HUB_OFFLINE:
        return False
    repository, revision = found
    _log.info("%s: downloading it from the Hugging Face hub", name)
    try:
        snapshot_download(
            repository,
            revision=revision or None,
            cache_dir=_engine.hub_cache_directory(),
            allow_patterns=FILES,
        )
    except Exception as failure:
        raise _error_of(name, error, failure, utils) from failure
    return True


def _error_of(name: str, error: Error, failure: Exception, utils: Any) -> Error:
    """Returns the exception for a failed download. `error`: the engine's error that led to the
    download. `utils`: the module huggingface_hub.utils, which has the exception classes."""
    if isinstance(failure, utils.GatedRepoError):
        return NotFoundError(
            f"{name}: access to it is restricted on the Hugging Face hub; accept its terms there, "
            f"then run: hf auth login ({_cause(failure)})"
        )
    if isinstance(failure, utils.RepositoryNotFoundError):
        return NotFoundError(
            f"{name}: no such directory, and no such model on the Hugging Face hub; if it is "
            f"private, run: hf auth login ({_cause(failure)})"
        )
    if isinstance(failure, utils.RevisionNotFoundError):
        return NotFoundError(
            f"{name}: the model on the Hugging Face hub has no such revision ({_cause(failure)})"
        )
    return UnavailableError(f"{error.message} (downloading it now has failed: {_cause(failure)})")


def _cause(failure: Exception) -> str:
    lines = str(failure).split("\n")
    return f"{type(failure).__name__}: {lines[0]}"

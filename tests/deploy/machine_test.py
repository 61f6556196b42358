"""Tests of the Dockerfile, the compose file and the systemd unit.

tests/deploy/full builds and runs the image.
"""

import json
import os
import re
import shlex
import subprocess

import pytest

from deploy_files import DEPLOY, ROOT, documents, run, settled_flags, text
from server_process import BINARY


def stages() -> dict[str, str]:
    """Returns the stages of the Dockerfile by name, with joined line continuations.

    The last stage has no name; here it is "default".
    """
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text("Dockerfile")))
    parts = re.split(r"(?m)^FROM (\S+)(?: AS (\S+))?\n", joined)
    return {
        parts[i + 1] or "default": f"FROM {parts[i]}\n{parts[i + 2]}"
        for i in range(1, len(parts), 3)
    }


def instruction(stage: str, name: str) -> str:
    found = re.findall(rf"(?m)^{name} (.*)$", stages()[stage])
    assert len(found) == 1, (stage, name, found)
    return found[0]


def test_the_image_is_built_as_everyone_builds():
    assert "RUN tools/setup.sh --build-only" in stages()["tools"]
    for build, runtime in (("build", "runtime"), ("build-cuda", "runtime-cuda")):
        assert stages()[build].startswith("FROM tools\n")
        assert "cmake --build build --target quintet" in stages()[build]
        assert "RUN deploy/image_root.sh build/quintet /image ${MODEL}" in stages()[build]
        assert stages()[runtime].startswith("FROM settings\n")
        assert f"COPY --from={build} /image/ /" in stages()[runtime]
    names = list(stages())
    assert names[-1] == "default" and stages()["default"].strip() == "FROM runtime"
    # Buildah before 1.30 also builds every stage that stands above its target in the file. The CPU
    # target must therefore stand above the CUDA stages.
    assert names.index("runtime") < names.index("cuda")


def test_the_image_runs_confined():
    assert stages()["settings"].startswith("FROM scratch\n")
    assert instruction("settings", "USER") == "10001:10001"
    assert not re.search(r"(?m)^USER", stages()["runtime"] + stages()["runtime-cuda"])
    variables = dict(pair.split("=") for pair in instruction("settings", "ENV").split())
    assert instruction("settings", "ENTRYPOINT") == '["/usr/local/bin/quintet"]'
    assert instruction("settings", "CMD") == '["serve"]'
    flags = settled_flags(["serve"], variables)
    ports = instruction("settings", "EXPOSE").split()
    assert [flags["listen"], flags["http-listen"]] == [f"0.0.0.0:{port}" for port in ports]


def test_health_check(server):
    """Runs the image's health check command against a ready server and against a closed port."""
    command = json.loads(
        re.search(r"CMD (\[.*\])", instruction("settings", "HEALTHCHECK")).group(1)
    )
    assert command[0] == "/usr/local/bin/quintet"
    for port, code in ((server.http_port, 0), (9, 1)):
        done = subprocess.run(
            [BINARY, *command[1:]],
            timeout=30,
            check=False,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "QUINTET_HTTP_LISTEN": f"0.0.0.0:{port}"},
        )
        assert done.returncode == code


def test_compose():
    (compose,) = documents("docker-compose.yaml")
    services = compose["services"]
    assert set(services) == {"quintet", "prometheus", "grafana"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (
                (DEPLOY / source).exists()
                if source.startswith(".")
                else source in compose["volumes"]
            ), volume
        assert set(service.get("depends_on", [])) <= set(services)
    quintet = services["quintet"]
    assert (DEPLOY / quintet["build"]["context"] / quintet["build"]["dockerfile"]).samefile(
        DEPLOY / "Dockerfile"
    )
    assert quintet["read_only"] and quintet["cap_drop"] == ["ALL"]
    flags = settled_flags(quintet["command"])
    assert (DEPLOY / "models" / flags["model"].removeprefix("g2p=/models/")).is_dir()
    # Prometheus reaches the server, and Grafana reaches Prometheus, by the service names of the
    # compose file.
    assert "quintet:9464" in text("prometheus/prometheus.yml")
    (source,) = documents("grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = documents("grafana/provisioning/dashboards/quintet.yaml")[0]["providers"]
    assert (
        f"./grafana/dashboards:{provider['options']['path']}:ro" in services["grafana"]["volumes"]
    )


def test_systemd_unit(tmp_path):
    unit = text("systemd/quintet.service")
    command = shlex.split(re.search(r"(?m)^ExecStart=(.*)$", unit).group(1))
    assert command[0] == "/usr/bin/quintet"
    (tmp_path / "quintet.service").write_text(unit.replace("/usr/bin/quintet", BINARY))
    assert run("systemd-analyze", "verify", "--man=no", tmp_path / "quintet.service") == ""
    exposure = run(
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=20",
        tmp_path / "quintet.service",
    )
    assert "Overall exposure level" in exposure
    # The binary accepts the configuration, which listens on loopback only.
    (option, path) = command[2:]
    assert (option, path) == ("--config", "/etc/quintet/serve.toml")
    flags = settled_flags(["serve", "--config", str(DEPLOY / "systemd" / "serve.toml")])
    assert (
        flags["listen"].startswith("127.0.0.1:")
        and flags["model"] == "g2p=/usr/share/quintet/models/g2p"
    )
    drain_s = float(flags["drain-delay"]) + float(flags["drain-timeout"])
    assert drain_s < float(re.search(r"TimeoutStopSec=(\d+)", unit).group(1))


def test_setup_installs_the_tools_of_these_tests():
    setup = (ROOT / "tools" / "setup.sh").read_text()
    for package in (
        "haproxy",
        "prometheus",
        "systemd",
        "openssl",
        "dpkg-dev",
        "groff-base",
        "fish",
    ):
        assert re.search(rf"\b{package}\b", setup), package

"""Tests of the Dockerfile, the compose file and the systemd unit."""

import platform
import re
import shlex
import subprocess

import pytest

from deploy_files import DEPLOY, ROOT, documents, run, settled_flags, text
from server_process import BINARY

# Packages that every Debian has.
ALWAYS_THERE = {"libc6", "libgcc-s1", "libstdc++6"}


def stages() -> dict[str, str]:
    """Returns the stages of the Dockerfile by name, with joined line continuations."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text("Dockerfile")))
    parts = re.split(r"(?m)^FROM (\S+) AS (\S+)\n", joined)
    return {parts[i + 1]: f"FROM {parts[i]}\n{parts[i + 2]}" for i in range(1, len(parts), 3)}


def instruction(stage: str, name: str) -> str:
    found = re.findall(rf"(?m)^{name} (.*)$", stages()[stage])
    assert len(found) == 1, (stage, name, found)
    return found[0]


def owners(libraries: set[str]) -> set[str]:
    """Returns the packages of shared libraries.

    dpkg knows files of /lib (a link to /usr/lib) by either path.
    """
    paths = {
        library: {library, library.removeprefix("/usr"), "/usr" + library} for library in libraries
    }
    found = subprocess.run(
        ["dpkg", "-S", *(path for ways in paths.values() for path in ways)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    packages = {path: package for package, path in re.findall(r"(?m)^([^:,]+):[^ ]* (/.*)$", found)}
    for library, ways in paths.items():
        assert ways & packages.keys(), f"no package owns {library}"
    return {packages[path] for ways in paths.values() for path in ways & packages.keys()}


def test_runtime_packages_are_those_that_the_binary_links():
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME")
    if f"debian:{suite}" not in stages()["base"]:
        pytest.skip(f"the image's packages are not those of {suite}")
    linked = dict(re.findall(r"(\S+) => (/\S+)", run("ldd", BINARY)))
    assert linked and "not found" not in run("ldd", BINARY)
    # CUDA libraries are not Debian packages: the image copies them from the CUDA image.
    cuda = {name for name in linked if re.match(r"lib(cu|nv)", name)}
    copied = re.findall(r"/usr/local/cuda/lib64/(\S+)", stages()["runtime-cuda"])
    assert cuda in (set(), set(copied))
    linked = {name: path for name, path in linked.items() if name not in cuda}
    needed = set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", BINARY)))
    direct = owners({path for name, path in linked.items() if name in needed}) - ALWAYS_THERE
    install = re.search(
        r"apt-get install -y --no-install-recommends (.*?)&&", stages()["base"]
    ).group(1)
    assert set(install.split()) == direct
    # Indirect libraries are dependencies of these packages.
    recursive = run(
        "apt-cache", "depends", "--recurse", "--installed", "--important", *sorted(direct)
    )
    assert owners(set(linked.values())) <= set(re.findall(r"(?m)^(\S+)$", recursive))


def test_the_image_is_built_as_everyone_builds():
    assert "RUN tools/setup.sh --build-only" in stages()["tools"]
    for name in ("build", "build-cuda"):
        assert stages()[name].startswith("FROM tools\n")
        assert "cmake --build build --target quintet" in instruction(name, "RUN")
    assert list(stages())[-1] == "runtime"  # the default target of `docker build`
    for name in ("runtime", "runtime-cuda"):
        assert stages()[name].startswith("FROM base\n")
        assert "/src/build/quintet /usr/local/bin/quintet" in stages()[name]


def test_the_image_runs_confined():
    assert instruction("base", "USER") == "10001:10001"
    last_user = re.findall(r"(?m)^USER (.*)$", stages()["runtime-cuda"])[-1]
    assert last_user == "10001:10001"
    variables = dict(pair.split("=") for pair in instruction("base", "ENV").split())
    assert instruction("base", "ENTRYPOINT") == '["quintet"]'
    assert instruction("base", "CMD") == '["serve"]'
    flags = settled_flags(["serve"], variables)
    ports = instruction("base", "EXPOSE").split()
    assert [flags["listen"], flags["http-listen"]] == [f"0.0.0.0:{port}" for port in ports]


def test_health_check(server):
    """Runs the health check command of the image on a ready server and on a closed port."""
    command = (
        re.search(r'CMD \["bash", "-c", "(.*)"\]', instruction("base", "HEALTHCHECK"))
        .group(1)
        .replace("\\\\", "\\")
    )
    assert "127.0.0.1/9464" in command
    assert (
        subprocess.run(
            ["bash", "-c", command.replace("9464", str(server.http_port))], timeout=30, check=False
        ).returncode
        == 0
    )
    nobody = subprocess.run(
        ["bash", "-c", command.replace("9464", "9")],
        timeout=30,
        check=False,
        stderr=subprocess.DEVNULL,
    )
    assert nobody.returncode != 0


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
    # Prometheus addresses the server, and Grafana Prometheus, by the service names of this file.
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

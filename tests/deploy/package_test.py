"""Tests of `cmake --install`, the manual pages and the Debian packages."""

import gzip
import hashlib
import io
import os
import pathlib
import re
import subprocess
import tarfile

import pytest

from deploy_files import DEPLOY, ROOT, run
from server_process import BINARY, run_quintet

BUILD = pathlib.Path(BINARY).parent
SUBCOMMANDS = (
    "generate encode score classify convert inspect serve admin bench completion health man".split()
)
PAGES = {"quintet", *(f"quintet-{name}" for name in SUBCOMMANDS)} | {
    "quintet-bench-serve",
    "quintet-bench-engine",
}


def files_under(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def installed(folder: pathlib.Path, prefix: str, *flags: str) -> set[str]:
    run(
        *("cmake", "--install", BUILD, "--prefix", prefix, *flags),
        env={**os.environ, "DESTDIR": str(folder)},
    )
    return files_under(folder)


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Builds the packages and returns them by name."""
    folder = tmp_path_factory.mktemp("packages")
    run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder, cwd=folder)
    return {path.name.split("_")[0]: path for path in folder.glob("*.deb")}


def control(package: pathlib.Path) -> dict[str, str]:
    fields = run("dpkg-deb", "--field", package)
    return dict(re.findall(r"(?m)^([A-Za-z-]+): (.*)$", fields))


@pytest.fixture(scope="module")
def unpacked(packages, tmp_path_factory) -> dict[str, pathlib.Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in packages}
    for name, folder in folders.items():
        run("dpkg-deb", "--raw-extract", packages[name], folder)
    return folders


def expected_files(prefix: str, etc: str, zsh: str) -> set[str]:
    share = f"{prefix}/share"
    return {
        f"{prefix}/bin/quintet",
        f"{prefix}/lib/systemd/system/quintet.service",
        f"{etc}/quintet/serve.toml",
        f"{share}/bash-completion/completions/quintet",
        f"{share}/fish/vendor_completions.d/quintet.fish",
        f"{share}/zsh/{zsh}/_quintet",
        *(f"{share}/man/man1/{page}.1.gz" for page in PAGES),
    }


def test_an_installation_for_the_administrator_has_its_own_paths(tmp_path):
    files = installed(tmp_path, "/usr/local")
    assert files == expected_files("usr/local", "usr/local/etc", "site-functions")
    unit = (tmp_path / "usr/local/lib/systemd/system/quintet.service").read_text()
    assert (
        "ExecStart=/usr/local/bin/quintet serve --config /usr/local/etc/quintet/serve.toml" in unit
    )
    assert "LoadCredential=api-keys:/usr/local/etc/quintet/api-keys" in unit
    configuration = (tmp_path / "usr/local/etc/quintet/serve.toml").read_text()
    assert "g2p=/usr/local/share/quintet/models/g2p" in configuration


def test_the_model_is_installed_on_request(tmp_path):
    files = installed(tmp_path, "/usr", "--component", "model")
    model = {name for name in files if not name.startswith("usr/share/doc/")}
    assert model == {
        f"usr/share/quintet/models/g2p/{name}" for name in files_under(DEPLOY / "models" / "g2p")
    }


def test_the_package_holds_the_files_of_deploy(unpacked):
    folder = unpacked["quintet"]
    files = {name for name in files_under(folder) if not name.startswith("DEBIAN/")}
    doc = "usr/share/doc/quintet"
    assert files == expected_files("usr", "etc", "vendor-completions") | {
        f"{doc}/copyright",
        f"{doc}/changelog.gz",
        f"{doc}/changelog.Debian.gz",
    }
    for name, path in {
        "quintet.service": "usr/lib/systemd/system",
        "serve.toml": "etc/quintet",
    }.items():
        assert (folder / path / name).read_text() == (DEPLOY / "systemd" / name).read_text()
    shell = run_quintet("completion", "bash").decode()
    assert (folder / "usr/share/bash-completion/completions/quintet").read_text() == shell
    changelog = gzip.decompress((folder / doc / "changelog.gz").read_bytes()).decode()
    assert changelog == (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path in folder.rglob("*"):
        mode = path.stat().st_mode & 0o777
        program = path.is_dir() or path.name in ("quintet", "postinst", "prerm", "postrm")
        program = program and path.parent.name != "completions"
        assert mode == (0o755 if program else 0o644), path
    # Stripped: no symbol table.
    assert ".symtab" not in run("objdump", "-h", folder / "usr/bin/quintet")


def test_control_fields(packages, unpacked):
    version = run_quintet("--version").decode().split()[1]
    quintet, model = control(packages["quintet"]), control(packages["quintet-model-g2p"])
    for fields in (quintet, model):
        assert fields["Version"].startswith(f"{version}-1~deb")
    assert model["Architecture"] == "all" and "Depends" not in model
    assert quintet["Suggests"] == "quintet-model-g2p"
    # dpkg-shlibdeps adds the shared libraries to Depends, with the versions of the Debian release
    # on which the package is built.
    depends = {word.split()[0] for word in quintet["Depends"].split(", ")}
    assert {"libc6", "libstdc++6"} <= depends
    assert any(name.startswith("libgrpc++") for name in depends)
    assert (unpacked["quintet"] / "DEBIAN/conffiles").read_text() == "/etc/quintet/serve.toml\n"
    # DEBIAN/md5sums lists every file with its correct MD5 sum.
    for name, folder in unpacked.items():
        sums = (folder / "DEBIAN/md5sums").read_text()
        listed = dict(reversed(line.split("  ")) for line in sums.splitlines())
        for path, digest in listed.items():
            assert hashlib.md5((folder / path).read_bytes()).hexdigest() == digest, (name, path)
        files = {path for path in files_under(folder) if not path.startswith("DEBIAN/")}
        assert set(listed) == files


def test_the_packages_are_those_of_root(packages):
    for package in packages.values():
        data = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, timeout=60, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            assert {(entry.uid, entry.gid) for entry in archive} == {(0, 0)}


def test_the_notices_of_both_licences_are_in_the_copyright_file():
    text = (DEPLOY / "debian" / "copyright").read_text()
    words = " ".join(re.sub(r"(?m)^ \.$", "", text).split())
    notice = (DEPLOY / "models" / "g2p" / "CMUDICT-LICENSE").read_text().split("\n", 1)[1]
    assert " ".join(notice.split()) in words
    for path in re.findall(r"(?m)^Files: (.*)/\*$", text):
        assert (ROOT / path).is_dir(), path


def test_maintainer_scripts_are_valid_shell():
    for name in ("postinst", "prerm", "postrm"):
        script = DEPLOY / "debian" / name
        assert script.read_text().startswith("#!/bin/sh\n")
        run("sh", "-n", script)
        assert os.access(script, os.X_OK)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pages") / "man1"
    run_quintet("man", str(folder))
    return folder


def plain(page: pathlib.Path) -> str:
    """Renders a manual page for a wide terminal. Fails on any warning of groff."""
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-rLL=400n", "-P-cbou", str(page)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", (page.name, done.stderr)
    return done.stdout


def test_manual_pages_say_what_help_says(pages):
    assert {path.stem for path in pages.iterdir()} == PAGES
    for page in PAGES:
        text = " ".join(plain(pages / f"{page}.1").split())
        command = page.split("-")[1:]
        lines = run_quintet(*command, "--help").decode().splitlines()
        assert f"NAME {page} - " in text
        if command:
            assert "EXAMPLE " in text and "SEE ALSO quintet(1)" in text
        for line in lines:
            if line.endswith(":") or line.startswith("Usage: "):
                continue  # headings have another form
            words = " ".join(line.replace("-h,--help", "-h,--help ").split())
            if re.match(r"  [a-z]+  ", line) and "SUBCOMMANDS" in text and words not in text:
                words = f"quintet-{words.split()[0]}"  # a subcommand: the name of its page
                if command:
                    words = page + words.removeprefix("quintet")
            assert words in text, (page, line)


def test_pages_that_cannot_be_written_are_an_error(tmp_path):
    (tmp_path / "file").touch()
    done = subprocess.run(
        [BINARY, "man", str(tmp_path / "file" / "man1")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "cannot write" in done.stderr

#!/usr/bin/env python3
"""Checks the dependencies against deny.toml: licences, duplicate versions, wildcards, sources, advisories.

Usage: scripts/deny.py   (as 'make deny' does; Python 3.11 or newer)

cargo-deny does the work if it is installed (cargo install --locked cargo-deny: several minutes). Without it,
everything but the advisories is checked here, from `cargo metadata`. Advisories need a database from the network: where
it cannot be reached, or without cargo-deny, they are not checked, and the output says so.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict


def cargo_deny():
    """Runs cargo-deny; True if it found no fault."""
    if subprocess.run(["cargo", "deny", "--locked", "check", "licenses", "bans", "sources"]).returncode:
        return False
    if subprocess.run(["cargo", "deny", "--locked", "fetch", "db"], stderr=subprocess.DEVNULL).returncode:
        print("deny: advisories NOT checked: their database cannot be reached")
        return True
    return subprocess.run(["cargo", "deny", "--locked", "check", "advisories"]).returncode == 0


def allowed(expression, allow):
    """Does the SPDX expression leave a choice that `allow` covers? '/' is an old way to write OR."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def alternatives():
        result = requirements()
        while words and words[0] == "OR":
            words.pop(0)
            result = requirements() or result
        return result

    def requirements():
        result = licence()
        while words and words[0] == "AND":
            words.pop(0)
            result = licence() and result
        return result

    def licence():
        word = words.pop(0)
        if word == "(":
            result = alternatives()
            words.pop(0)
            return result
        if words and words[0] == "WITH":
            word = " ".join([word, words.pop(0), words.pop(0)])
        return word in allow

    return alternatives() and not words


def packages(targets):
    """Every package that is built for one of the targets, by id."""
    found = {}
    for target in targets:
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
        metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        used = {node["id"] for node in metadata["resolve"]["nodes"]}
        found.update((package["id"], package) for package in metadata["packages"] if package["id"] in used)
    return list(found.values())


def faults(rules, packages):
    allow = rules["licenses"]["allow"]
    versions = defaultdict(set)
    # One registry for all: the one that most come from.
    sources = Counter(package["source"] for package in packages if package["source"])
    registry = max(sources, key=sources.get, default=None)
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if not package["license"]:
            yield f"{name}: no licence given"
        elif not allowed(package["license"], allow):
            yield f"{name}: the licence '{package['license']}' is not allowed by deny.toml"
        if package["source"] not in (None, registry) or not (package["source"] or "registry+").startswith("registry+"):
            yield f"{name}: comes from {package['source']}, not from the registry of the others"
        if package["source"] is None:
            for dependency in package["dependencies"]:
                if dependency["req"] == "*" and not dependency.get("path"):
                    yield f"{name}: takes any version of {dependency['name']}"
        versions[package["name"]].add(package["version"])

    skipped = defaultdict(list)
    for skip in rules["bans"]["skip"]:
        name, version = skip["crate"].split("@")
        skipped[name].append(version)
    for name, found in sorted(versions.items()):
        skip = skipped.pop(name, [])
        for version in skip:
            if not any(f"{v}.".startswith(f"{version}.") for v in found):
                print(f"deny: warning: deny.toml skips {name} {version}, which is not used")
        found = [v for v in found if not any(f"{v}.".startswith(f"{version}.") for version in skip)]
        if len(found) > 1:
            yield f"{name}: used in the versions {', '.join(sorted(found))}"
    for name in skipped:
        print(f"deny: warning: deny.toml skips {name}, which is not used")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if shutil.which("cargo-deny"):
        return cargo_deny()
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    used = packages(rules["graph"]["targets"])
    found = list(faults(rules, used))
    for fault in found:
        print(f"deny: {fault}", file=sys.stderr)
    print(f"deny: {len(used)} packages, {len(found)} faults: licences, duplicate versions, wildcards, sources")
    print("deny: advisories NOT checked: cargo-deny is not installed")
    return not found


if __name__ == "__main__":
    sys.exit(0 if main() else 1)

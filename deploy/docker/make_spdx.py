#!/usr/bin/env python3
"""make_spdx.py IMAGE VERSION: lists what is in the image's root file system as SPDX 2.3 JSON, and
puts the list into it. Runs where the image is collected, beside dpkg; the packages are those whose
records lie in var/lib/dpkg/status.d. SOURCE_DATE_EPOCH is the time it bears, so that equal images
have equal lists; now, where it is not set."""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

LIST = "usr/share/doc/lockstepd/lockstepd.spdx.json"
# Debian's short names of licences, and SPDX's. A package with any other is NOASSERTION.
LICENCES = {"Expat": "MIT", "MIT": "MIT", "Apache-2.0": "Apache-2.0", "Apache-2": "Apache-2.0",
            "BSD-3-clause": "BSD-3-Clause", "BSD-2-clause": "BSD-2-Clause", "Zlib": "Zlib",
            "BSL-1.0": "BSL-1.0", "GPL-2": "GPL-2.0-only", "GPL-2+": "GPL-2.0-or-later",
            "GPL-3+": "GPL-3.0-or-later", "LGPL-2.1": "LGPL-2.1-only",
            "LGPL-2.1+": "LGPL-2.1-or-later"}


def identifier(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")


def read_record(path):
    return dict(line.split(": ", 1) for line in path.read_text().splitlines()
                if re.match(r"[A-Za-z-]+: ", line))


def declared_licence(copyright_file):
    """Of a copyright file that machines can read, if all its licences are known."""
    if not copyright_file.exists():
        return "NOASSERTION"
    text = copyright_file.read_text(errors="replace")
    names = set(re.findall(r"^License: *(\S.*?) *$", text, re.M))
    if "copyright-format/1.0" not in text or not names or not names <= LICENCES.keys():
        return "NOASSERTION"
    return " AND ".join(sorted({LICENCES[name] for name in names}))


def owners_of_libraries(paths):
    """Debian's package of each, by the path with or without /usr. dpkg is asked once, since it reads
    the lists of all packages each time; it ends with 1 where it does not know one of them."""
    places = {path: (f"/usr/{path.removeprefix('usr/')}", f"/{path.removeprefix('usr/')}")
              for path in paths}
    asked = [place for both in places.values() for place in both]
    found = subprocess.run(["dpkg-query", "--search", *asked], capture_output=True, text=True)
    packages = {line.rpartition(": ")[2]: line.partition(":")[0]
                for line in found.stdout.splitlines()}
    return {path: packages.get(with_usr) or packages.get(without)
            for path, (with_usr, without) in places.items()}


def owner_of(path, packages, libraries):
    document = re.match(r"(?:usr/share/doc/([^/]+)/copyright|var/lib/dpkg/status\.d/([^/]+))$", path)
    name = (document[1] or document[2]) if document else libraries.get(path)
    return name if name in packages else "lockstepd"


def describe_files(image, packages):
    """The files, and the files of each package."""
    files, of_package = [], {name: [] for name in ("lockstepd", *packages)}
    paths = {str(path.relative_to(image)): path for path in sorted(image.rglob("*"))
             if path.is_file() and not path.is_symlink()}
    paths.pop(LIST, None)
    libraries = owners_of_libraries([name for name in paths if name.startswith("usr/lib")])
    for name, path in paths.items():
        content = path.read_bytes()
        entry = {"SPDXID": identifier("File", name), "fileName": f"./{name}",
                 "checksums": [{"algorithm": algorithm.upper(),
                                "checksumValue": hashlib.new(algorithm, content).hexdigest()}
                               for algorithm in ("sha1", "sha256")],
                 "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"}
        files.append(entry)
        of_package[owner_of(name, packages, libraries)].append(entry)
    return files, of_package


def verification_code(files):
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    return hashlib.sha1("".join(sums).encode()).hexdigest()


def describe_package(name, version, licence, supplier, files):
    return {"SPDXID": identifier("Package", name), "name": name, "versionInfo": version,
            "supplier": supplier, "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
            "packageVerificationCode": {"packageVerificationCodeValue": verification_code(files)},
            "licenseConcluded": "NOASSERTION", "licenseDeclared": licence,
            "copyrightText": "NOASSERTION"}


def describe_debian_package(image, name, record, files):
    release = read_release(image)
    package = describe_package(name, record["Version"],
                               declared_licence(image / f"usr/share/doc/{name}/copyright"),
                               "Organization: Debian", files)
    package["externalRefs"] = [{
        "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
        "referenceLocator": f"pkg:deb/debian/{name}@{record['Version'].replace('+', '%2B')}"
                            f"?arch={record['Architecture']}&distro={release}"}]
    return package


def read_release(image):
    values = dict(re.findall(r'^(\w+)="?(.*?)"?$', (image / "etc/os-release").read_text(), re.M))
    return f"{values['ID']}-{values['VERSION_ID']}"


def describe(image, version):
    records = {path.name: read_record(path)
               for path in sorted((image / "var/lib/dpkg/status.d").iterdir())}
    files, of_package = describe_files(image, records)
    described = [describe_package("lockstepd", version, "MIT", "NOASSERTION",
                                  of_package["lockstepd"])]
    described += [describe_debian_package(image, name, record, of_package[name])
                  for name, record in records.items()]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", each["SPDXID"]) for each in described]
    relations += [(described[0]["SPDXID"], "DYNAMIC_LINK", each["SPDXID"])
                  for each in described[1:]]
    relations += [(each["SPDXID"], "CONTAINS", file["SPDXID"])
                  for each in described for file in of_package[each["name"]]]
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.datetime.now().timestamp())
    created = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    content = hashlib.sha256(json.dumps([described, files]).encode()).hexdigest()
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"lockstepd-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/lockstepd-{version}-{content}",
            "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": ["Tool: lockstep-make_spdx"]},
            "packages": described, "files": files,
            "relationships": [{"spdxElementId": one, "relationshipType": kind,
                               "relatedSpdxElement": other} for one, kind, other in relations]}


def main():
    image, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    target = image / LIST
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(describe(image, version), indent=1) + "\n")


if __name__ == "__main__":
    main()

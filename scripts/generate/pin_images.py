#!/usr/bin/env python3
"""Pins the images that are built on or run beside the daemon, in Dockerfile and deploy/compose.yaml,
by the digests that their registries tell now.

    scripts/generate/pin_images.py            writes the digests into the two files (needs skopeo)
    scripts/generate/pin_images.py --check    ends with 1, naming each image that has none
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The text before the image's name, by file.
PLACES = {"Dockerfile": r"^(ARG (?:BASE|CUDA_BASE)=)(\S+)$",
          "deploy/compose.yaml": r"^( *image: )((?!lockstepd$)\S+)$"}
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def images(root):
    """(file, image) of each, with a variable's default in place of the variable."""
    for name, pattern in PLACES.items():
        for _, image in re.findall(pattern, (root / name).read_text(), re.M):
            yield name, image


def ask_digest(image):
    plain = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", image)
    reference = plain if "." in plain.split("/")[0] else f"docker.io/{plain}"
    command = ["skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{reference}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"pin-images: {' '.join(command)}: {getattr(error, 'stderr', None) or error}")
    if not DIGEST.match(f"@{told}"):
        sys.exit(f"pin-images: {image}: skopeo tells no digest, but \"{told}\"")
    return f"{plain}@{told}"


def pin(root):
    for name, pattern in PLACES.items():
        path = root / name
        path.write_text(re.sub(
            pattern, lambda found: found[1] + ask_digest(DIGEST.sub("", found[2])),
            path.read_text(), flags=re.M))


def main():
    root = pathlib.Path(sys.argv[sys.argv.index("--root") + 1]) if "--root" in sys.argv else ROOT
    if "--check" not in sys.argv:
        pin(root)
    bare = [f"{name}: {image}" for name, image in images(root) if not DIGEST.search(image)]
    for line in bare:
        print(f"pin-images: not pinned by a digest: {line}", file=sys.stderr)
    return 1 if bare else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the kubelet names becomes file names, so only names of Kubernetes pass."""

from __future__ import annotations

import pytest

from nodeagent.claims.model import ClaimRefused
from nodeagent.cluster.kubelet.plugin.claim_calls import ClaimName, read_claim_name

UID = "6f1c2f0e-3f0b-4c2e-9a53-0d3a1b7c9e11"


@pytest.mark.parametrize(
    ("namespace", "name", "uid"),
    [
        ("default", "gpu", UID),
        ("n" * 63, ".".join(["a" * 63] * 3), "0"),
        ("0", "trainer-0-gpu-x7b2c.v2", "f" * 64),
    ],
)
def test_names_of_kubernetes_pass(namespace: str, name: str, uid: str) -> None:
    """A label, a subdomain, and what a uid is made of."""
    assert read_claim_name(namespace, name, uid) == ClaimName(namespace, name, uid)


@pytest.mark.parametrize(
    "namespace", ["", "N", "a.b", "-a", "a-", "n" * 64, "a/b", "..", "a\n", "ä", "a\0"]
)
def test_other_namespaces_do_not(namespace: str) -> None:
    """Nor what would lead out of a folder."""
    with pytest.raises(ClaimRefused, match=r"the claim's namespace .* is not one of Kubernetes"):
        read_claim_name(namespace, "gpu", UID)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a..b", "A", "a_b", "../a", "a.", "a\n", ".".join(["a" * 63] * 4)]
)
def test_other_names_do_not(name: str) -> None:
    """The last is one of 255 letters."""
    with pytest.raises(ClaimRefused, match="the claim's name"):
        read_claim_name("default", name, UID)


@pytest.mark.parametrize(
    "uid", ["", "-", "..", "a/b", UID.upper(), "f" * 65, "g", f"{UID}\n", "a "]
)
def test_other_uids_do_not(uid: str) -> None:
    """A uid has hexadecimal digits and hyphens."""
    with pytest.raises(ClaimRefused, match="the claim's uid"):
        read_claim_name("default", "gpu", uid)

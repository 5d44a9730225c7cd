"""Kinds of data, by name; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from unremix.domains.base import Domain

DOMAINS = {
    "image": ("unremix.domains.image", "ImageDomain"),
    "graph": ("unremix.domains.graph", "GraphDomain"),
    "sentence": ("unremix.domains.sentence", "SentenceDomain"),
}


def find_domain(name: str) -> Domain:
    """A domain by its name."""
    module, kind = DOMAINS[name]
    domain: Domain = getattr(import_module(module), kind)()
    return domain


__all__ = ["DOMAINS", "Domain", "find_domain"]

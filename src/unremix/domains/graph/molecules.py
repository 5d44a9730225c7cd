"""Molecules from SMILES, in a column of a table or on the lines of a .smi file, read by RDKit.

A node is a heavy atom, labeled by its element; an edge is a bond.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unremix.console.suggestions import needed_for
from unremix.domains.graph.json_lines import Line, collect
from unremix.domains.graph.raw import RawGraphs
from unremix.domains.rows import SUFFIXES, column, read_rows
from unremix.files.archives import Skipped
from unremix.files.atomic_files import open_text

SMILES = ("smiles", "canonical_smiles", "isomeric_smiles", "molecule", "mol", "structure")
LABELS = ("label", "labels", "class", "target", "activity", "active", "y")
NAMES = ("name", "names", "id", "mol_id", "compound")
INVALID = "no valid SMILES"


def holds_molecules(path: Path) -> bool:
    """Whether the name says so."""
    return path.suffix.lower() in (".smi", ".smiles", *SUFFIXES[:2])


def read_molecules(path: Path) -> RawGraphs:
    """Read molecules from a ``.csv``, ``.tsv`` or ``.smi`` file; invalid SMILES are left out.

    Raises:
        ImportError: If RDKit is not installed.
        ValueError: If there is no column of SMILES, or no valid molecule.
    """
    with needed_for("molecules from SMILES", "give the graphs as JSON lines"):
        chemistry = importlib.import_module("rdkit.Chem")
        importlib.import_module("rdkit.RDLogger").DisableLog("rdApp.*")
    skipped: list[Skipped] = []

    def lines() -> Iterator[Line]:
        for where, smiles, name, label in _smiles_of(path):
            molecule = chemistry.MolFromSmiles(smiles)
            if molecule is None:
                skipped.append(Skipped(f"{smiles} ({where})", INVALID))
            else:
                yield _line(molecule, where, name or smiles, label)

    return collect(lines(), path.stem, path.stat().st_size, skipped)


def _line(molecule: Any, where: str, name: str, label: str | None) -> Line:
    bonds = [(one.GetBeginAtomIdx(), one.GetEndAtomIdx()) for one in molecule.GetBonds()]
    edges = np.array([*bonds, *(pair[::-1] for pair in bonds)], dtype=np.int64).reshape(-1, 2)
    elements = [atom.GetSymbol() for atom in molecule.GetAtoms()]
    return Line(where, name, len(elements), edges, elements, None, label)


def _smiles_of(path: Path) -> Iterator[tuple[str, str, str, str | None]]:
    """Where each molecule stands, its SMILES, name and label, where they are known."""
    if path.suffix.lower() in SUFFIXES:
        columns: list[str | None] = []
        for where, row in read_rows(path):
            columns = columns or [
                column(row, usual, asked=None, what=what, where=where, needed=usual is SMILES)
                for usual, what in ((SMILES, "SMILES"), (NAMES, "names"), (LABELS, "labels"))
            ]
            smiles, name, label = (None if one is None else row[one].strip() for one in columns)
            yield where, smiles or "", name or "", label
        return
    with open_text(path, "utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            smiles, *rest = line.split(maxsplit=1) or [""]
            if smiles and not (number == 1 and smiles.lower() in SMILES):
                yield f"line {number} of {path}", smiles, "".join(rest).strip(), None

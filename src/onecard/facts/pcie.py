"""How fast a card reaches the computer's memory: the generation of its slot, by architecture."""

# By architecture, from the vendors' data sheets; a board, a riser or a laptop may have less.
PCIE = {
    **dict.fromkeys(("Maxwell", "Pascal", "Volta", "Turing", "RDNA"), 3.0),
    **dict.fromkeys(("Ampere", "Ada", "CDNA2", "RDNA2", "RDNA3"), 4.0),
    **dict.fromkeys(("Hopper", "Blackwell", "CDNA3", "RDNA4"), 5.0),
}
PCIE_USUAL = 4.0
# NVIDIA's bandwidthTest with pinned memory reaches about four fifths of 15.75, 31.5 and 63 GB/s
PCIE_BANDWIDTH = {3.0: 12.3e9, 4.0: 25e9, 5.0: 50e9}


def pcie_generation(architecture: str) -> float:
    """The newest that cards of an architecture have.

    >>> pcie_generation("Ada"), pcie_generation("Blackwell Ultra")
    (4.0, 5.0)
    """
    return PCIE.get(architecture.partition(" ")[0], PCIE_USUAL)

"""`python -m crossbert`, as torchrun starts it: `torchrun --nproc-per-node 8 -m crossbert train ...`."""

from crossbert.cli import main

main()

"""The federation: handshake, rounds, guards, wire, checkpoints; the server side needs no torch."""

#!/usr/bin/env python3
"""Prints what the rendezvous' handshake has to compute for one secret and pair of nonces, by Python's hmac and hashlib. The values stand
in tests/runtime/rendezvous/test_auth.c."""
import hashlib
import hmac
import struct

secret, rank_nonce, server_nonce = bytes(range(32)), bytes(range(100, 132)), bytes(range(200, 232))
VERSION, RANK, SIZE = 3, 1, 4


def mac(key, text):
    return hmac.new(key, text, hashlib.sha256).digest()


def handshake(role):
    return role.encode().ljust(16, b"\0") + struct.pack("<III", VERSION, RANK, SIZE) + rank_nonce + server_nonce


def hkdf(role):  # RFC 5869; one block is all of the key
    return mac(mac(rank_nonce + server_nonce, secret), handshake(role) + b"\1")


def sealed(role, number, frame):
    return frame + mac(hkdf(role), struct.pack("<Q", number) + frame)


for role in ("heddle rank", "heddle server"):
    print(role, "proof", mac(secret, b"proof" + handshake(role)).hex())
    heartbeat = struct.pack("<BBHIIi", VERSION, 5, 0, 0, 0, 0)
    for number in (0, 1):
        print(role, "heartbeat", number, sealed(role, number, heartbeat)[16:].hex())

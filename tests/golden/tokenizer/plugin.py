"""A tokenizer plug-in, driven from Python: a plug-in links nothing of heddle, so ctypes loads it as it is."""
import ctypes as c

SPECIAL, FRAME = 1, 2  # of encode
SKIP_SPECIAL = 1       # of decode


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("code", c.c_int32), ("scope", c.c_int32), ("native", c.c_int64), ("peer", c.c_int64),
                ("where", c.c_char * 128), ("message", c.c_char * 1024), ("origin", c.c_uint64)]


class Info(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.c_int64) for name in ("vocab", "bos", "eos", "pad", "unk")]


EMIT_IDS = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_size_t)
EMIT_TEXT = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_size_t)


class Ops(c.Structure):  # struct hd_tokenizer_ops
    _fields_ = [("struct_size", c.c_size_t), ("caps", c.c_uint64),
                ("open", c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_char_p, c.POINTER(c.c_void_p), c.POINTER(Error))),
                ("close", c.CFUNCTYPE(None, c.c_void_p)),
                ("info", c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Info))),
                ("encode", c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_char_p, c.c_size_t, c.c_uint32, EMIT_IDS, c.c_void_p, c.POINTER(Error))),
                ("decode", c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_size_t, c.c_uint32, EMIT_TEXT, c.c_void_p, c.POINTER(Error))),
                ("find", c.CFUNCTYPE(c.c_int64, c.c_void_p, c.c_char_p, c.c_size_t))]


class Component(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("kind", c.c_uint32), ("reserved", c.c_uint32), ("name", c.c_char_p),
                ("summary", c.c_char_p), ("caps", c.c_uint64), ("options", c.c_void_p), ("n_options", c.c_size_t),
                ("option_size", c.c_size_t), ("settings_size", c.c_size_t), ("probe", c.c_void_p), ("ops", c.POINTER(Ops))]


class Plugin(c.Structure):
    _fields_ = [("magic", c.c_char * 8), ("struct_size", c.c_size_t), ("abi_minor", c.c_uint32), ("reserved", c.c_uint32),
                ("name", c.c_char_p), ("version", c.c_char_p), ("licence", c.c_char_p), ("components", c.POINTER(c.POINTER(Component)))]


class Tokenizer:
    """Of one file. Every call may be made by several threads at once."""

    def __init__(self, library, path):
        entry = c.CDLL(library).heddle_plugin_v1
        entry.restype = c.POINTER(Plugin)
        self.ops = entry().contents.components[0].contents.ops.contents
        self.handle, err = c.c_void_p(), Error(struct_size=c.sizeof(Error))
        if self.ops.open(None, str(path).encode(), self.handle, err):
            raise ValueError(err.message.decode())
        self.info = Info(struct_size=c.sizeof(Info))
        self.ops.info(self.handle, self.info)

    def __del__(self):
        if getattr(self, "handle", None):
            self.ops.close(self.handle)

    def encode(self, text, flags=SPECIAL):
        """Ids of bytes, or of the UTF-8 of a str, as the bytes of an array of int32."""
        text = text.encode() if isinstance(text, str) else text
        out, err = [], Error(struct_size=c.sizeof(Error))
        emit = EMIT_IDS(lambda user, ids, count: out.append(c.string_at(ids, 4 * count)))
        if self.ops.encode(self.handle, text, len(text), flags, emit, None, err):
            raise ValueError(err.message.decode())
        return b"".join(out)

    def ids(self, text, flags=SPECIAL):
        return memoryview(self.encode(text, flags)).cast("i").tolist()

    def decode(self, ids, flags=0):
        """The bytes of a list of ids."""
        out, err, array = [], Error(struct_size=c.sizeof(Error)), (c.c_int32 * len(ids))(*ids)
        emit = EMIT_TEXT(lambda user, text, count: out.append(c.string_at(text, count)))
        if self.ops.decode(self.handle, array, len(ids), flags, emit, None, err):
            raise ValueError(err.message.decode())
        return b"".join(out)

    def find(self, token):
        return self.ops.find(self.handle, token.encode(), len(token.encode()))

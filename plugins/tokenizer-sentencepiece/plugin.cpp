/* tokenizer-sentencepiece: a model of SentencePiece, by its own library. Control symbols, which that library takes for
 * text, are cut out before it where the caller asks for it. */
#include <sentencepiece_processor.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "heddle/host.h"
#include "heddle/tokenizer.h"

struct hd_tokenizer {
    std::string path;
    sentencepiece::SentencePieceProcessor model;
    std::vector<int> special; /* control symbols and the unknown piece */
    std::vector<bool> is_special;
};

namespace {

using emit_ids = void (*)(void *user, const int32_t *ids, size_t count);
using emit_text = void (*)(void *user, const char *text, size_t bytes);

int32_t failed(const hd_tokenizer *t, const std::string &why, struct hd_error *err)
{
    return hd_fail(err, HD_E_INVALID, "%s: %s", t->path.c_str(), why.c_str());
}

/* A model is a serialized message whose first field is its list of pieces; that of other files is not even asked. */
int32_t load(hd_tokenizer *t, struct hd_error *err)
{
    constexpr char pieces = 0x0a;
    const char *path = t->path.c_str();
    std::ifstream file(t->path, std::ios::binary);
    std::ostringstream bytes;
    if (!file)
        return hd_fail(err, errno == ENOENT ? HD_E_NOTFOUND : HD_E_IO, "%s: %s", path, strerror(errno));
    if (!(bytes << file.rdbuf()) && !file.eof())
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: empty, or it cannot be read", path);
    std::string text = bytes.str();
    if (text.size() < 3 || text[0] != pieces)
        return hd_fail(err, HD_E_UNSUPPORTED, "%s: no model of SentencePiece", path);
    auto status = t->model.LoadFromSerializedProto(text);
    return status.ok() ? HD_OK
                       : hd_fail(err, HD_E_UNSUPPORTED, "%s: no model of SentencePiece: %s", path, status.message());
}

int32_t open_model(const struct hd_host *, const char *path, struct hd_tokenizer **tokenizer, struct hd_error *err)
try {
    auto *t = new hd_tokenizer;
    t->path = path;
    if (int32_t rc = load(t, err)) {
        delete t;
        return rc;
    }
    t->is_special.resize(static_cast<size_t>(t->model.GetPieceSize()));
    for (int id = 0; id < t->model.GetPieceSize(); id++)
        if (t->model.IsControl(id) || t->model.IsUnknown(id)) {
            t->special.push_back(id);
            t->is_special[static_cast<size_t>(id)] = true;
        }
    *tokenizer = t;
    return HD_OK;
} catch (const std::exception &e) {
    return hd_fail(err, HD_E_NOMEM, "%s: %s", path, e.what());
}

void close_model(struct hd_tokenizer *t)
{
    delete t;
}

void info(const struct hd_tokenizer *t, struct hd_tokenizer_info *info)
{
    const struct hd_tokenizer_info all = {info->struct_size,   t->model.GetPieceSize(), t->model.bos_id(),
                                          t->model.eos_id(), t->model.pad_id(),       t->model.unk_id()};
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
}

/* ---- text to ids */

/* The longest control symbol at the start of a text; -1: there is none. */
int special_at(const hd_tokenizer *t, std::string_view text, size_t *bytes)
{
    int found = -1;
    *bytes = 0;
    for (int id : t->special) {
        const std::string &piece = t->model.IdToPiece(id);
        if (piece.size() > *bytes && text.compare(0, piece.size(), piece) == 0) {
            found = id;
            *bytes = piece.size();
        }
    }
    return found;
}

int32_t encode_text(const hd_tokenizer *t, std::string_view text, emit_ids emit, void *user, struct hd_error *err)
{
    std::vector<int> ids;
    auto status = t->model.Encode(text, &ids);
    if (!status.ok())
        return failed(t, status.message(), err);
    if (!ids.empty())
        emit(user, ids.data(), ids.size());
    return HD_OK;
}

int32_t encode_cut(const hd_tokenizer *t, std::string_view text, emit_ids emit, void *user, struct hd_error *err)
{
    bool first_byte[256] = {};
    size_t done = 0, bytes = 0;
    int32_t rc = HD_OK;
    for (int id : t->special)
        first_byte[static_cast<uint8_t>(t->model.IdToPiece(id)[0])] = true;
    for (size_t at = 0; at < text.size() && !rc;) {
        int id = first_byte[static_cast<uint8_t>(text[at])] ? special_at(t, text.substr(at), &bytes) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (at > done)
            rc = encode_text(t, text.substr(done, at - done), emit, user, err);
        if (!rc)
            emit(user, &id, 1);
        done = at += bytes;
    }
    return rc || done == text.size() ? rc : encode_text(t, text.substr(done), emit, user, err);
}

/* What stands around a text is not in the file: BOS, where there is one, as of Llama, Mistral and Gemma. */
int32_t encode(const struct hd_tokenizer *t, const char *text, size_t bytes, uint32_t flags, emit_ids emit, void *user,
               struct hd_error *err)
try {
    int bos = t->model.bos_id();
    std::string_view view(text, bytes);
    if ((flags & HD_TOKENIZER_FRAME) && bos >= 0)
        emit(user, &bos, 1);
    return flags & HD_TOKENIZER_SPECIAL ? encode_cut(t, view, emit, user, err) : encode_text(t, view, emit, user, err);
} catch (const std::exception &e) {
    return hd_fail(err, HD_E_NOMEM, "%s: %s", t->path.c_str(), e.what());
}

/* ---- ids to text */

int32_t decode_run(const hd_tokenizer *t, std::vector<int> *run, emit_text emit, void *user, struct hd_error *err)
{
    std::string text;
    auto status = t->model.Decode(*run, &text);
    run->clear();
    if (!status.ok())
        return failed(t, status.message(), err);
    if (!text.empty())
        emit(user, text.data(), text.size());
    return HD_OK;
}

int32_t check(const hd_tokenizer *t, const int32_t *ids, size_t count, struct hd_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->model.GetPieceSize())
            return hd_fail(err, HD_E_INVALID, "%s: id %d, number %zu of %zu, is no token: the vocabulary has 0 to %d",
                           t->path.c_str(), ids[i], i, count, t->model.GetPieceSize() - 1);
    return HD_OK;
}

/* The library decodes control symbols to nothing: their names are put between what stands before and behind them. */
int32_t decode(const struct hd_tokenizer *t, const int32_t *ids, size_t count, uint32_t flags, emit_text emit,
               void *user, struct hd_error *err)
try {
    std::vector<int> run;
    int32_t rc = check(t, ids, count, err);
    for (size_t i = 0; i < count && !rc; i++) {
        if (!t->is_special[static_cast<size_t>(ids[i])]) {
            run.push_back(ids[i]);
            continue;
        }
        const std::string &name = t->model.IdToPiece(ids[i]);
        rc = decode_run(t, &run, emit, user, err);
        if (!rc && !(flags & HD_TOKENIZER_SKIP_SPECIAL))
            emit(user, name.data(), name.size());
    }
    return rc ? rc : decode_run(t, &run, emit, user, err);
} catch (const std::exception &e) {
    return hd_fail(err, HD_E_NOMEM, "%s: %s", t->path.c_str(), e.what());
}

/* The library has the unknown piece for every text that it does not know. */
int64_t find(const struct hd_tokenizer *t, const char *token, size_t bytes)
{
    int id = t->model.PieceToId(std::string_view(token, bytes));
    return id == t->model.unk_id() && t->model.IdToPiece(id) != std::string_view(token, bytes) ? -1 : id;
}

const struct hd_tokenizer_ops ops = {sizeof ops, 0, open_model, close_model, info, encode, decode, find};

const struct hd_component component = {
    sizeof component,
    HD_KIND_TOKENIZER,
    0,
    "sentencepiece",
    "models of SentencePiece, by its library: BPE and unigram",
    0,
    nullptr,
    0,
    0,
    0,
    nullptr,
    &ops,
    nullptr,
    0,
    0,
};

} // namespace

HD_PLUGIN_ONE("tokenizer-sentencepiece", "0.1.0", "Apache-2.0", component)

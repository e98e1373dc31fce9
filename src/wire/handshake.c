/*
 * handshake.c: see handshake.h.  The shape is that of Noise NNpsk0: fresh X25519 keys of
 * both sides under one key that both have beforehand.  All integers little endian.
 *
 *   HELLO, 256 bytes                         REPLY, 256 bytes
 *     0   4  "HvdH"                            0   4  "HvdR"
 *     4   2  protocol version                  4   2  protocol version
 *     6   2  0                                 6   2  0, or 1: the versions differ
 *     8  32  nonce of the dialer               8  32  nonce of the listener
 *    40  32  X25519 public key                40  32  X25519 public key
 *    72   4  purpose                          72  16  0
 *    76   4  rank of the dialer               88  32  library version, padded with 0
 *    80   4  rank that is dialled            120 104  0
 *    84   4  generation                      224  32  proof
 *    88  32  library version, padded with 0
 *   120  64  job id, padded with 0           CONFIRM, 64 bytes
 *   184  40  0                                 0   4  "HvdC"
 *   224  32  proof                             4  28  0
 *                                             32  32  proof
 *
 *   hello key, refusal key = HKDF(job key, salt "horovod handshake", info "hello" ...)
 *   reply key | confirm key | dialer's key | listener's key =
 *       HKDF(shared X25519 secret | job key, salt HELLO | REPLY without its proof,
 *            info "horovod connection" | purpose | dialer | dialled | generation)
 *   proof of HELLO   = HMAC(hello key, HELLO without its proof)
 *   proof of REPLY   = HMAC(reply key, HELLO | REPLY without its proof); when the
 *                      versions differ, the refusal key takes the place of the reply key
 *   proof of CONFIRM = HMAC(confirm key, HELLO | REPLY | CONFIRM without its proof)
 *
 * 1. In every protocol version bytes 0-7, 88-119, 224-255 of HELLO and REPLY and the two
 *    keys that come from the job key alone keep place and meaning, so that any two
 *    versions can name each other.
 * 2. A replayed HELLO gets a REPLY and nothing more: CONFIRM needs the X25519 secret of
 *    the one who made the HELLO.  A replayed REPLY or CONFIRM is over other nonces.
 * 3. A message that is sent back to its maker, or to another rank, or on a connection
 *    with another purpose, names other ranks or another purpose and is refused; no rank
 *    dials itself.
 * 4. A listener tells a stranger nothing: its only answer is the end of the connection.
 *    Who holds the key but has another version gets a REPLY that says so.
 * 5. HVD_VERSION is said of a peer that has proved the key, of nobody else.  What an
 *    unproved message claims to be is a hint in the text of HVD_AUTH.
 */
#include "wire/handshake.h"

#include "wire/bytes.h"
#include "wire/crypto.h"

#include <stdio.h>
#include <string.h>

enum { AT_VERSION = 4, AT_REFUSAL = 6, AT_NONCE = HS_AT_NONCE, AT_PUBLIC = 40, AT_PURPOSE = 72,
       AT_DIALER = 76, AT_DIALLED = 80, AT_GENERATION = 84, AT_LIBRARY = 88, AT_JOB = 120,
       AT_PROOF = 224, AT_CONFIRM_PROOF = 32 };
enum { NONCE = 32, LIBRARY = 32, JOB = 64, PROOF = 32 };

_Static_assert(AT_PROOF + PROOF == HS_HELLO && HS_HELLO == HS_REPLY, "proof is last");
_Static_assert(AT_CONFIRM_PROOF + PROOF == HS_CONFIRM, "proof is last");
_Static_assert(HS_KEY == CRYPTO_KEY && HS_VERSION_TEXT == LIBRARY + 1, "sizes agree");

static const char not_proved[] =
    "the peer did not prove that it belongs to this job: key, job id, generation, rank or "
    "purpose differ";

/* ---- Keys and proofs -------------------------------------------------------------- */

static enum hvd_status key_from_job(const uint8_t key[HS_KEY], const char *info,
                                    uint8_t out[HS_KEY], struct hvd_error *err)
{
    static const char salt[] = "horovod handshake";

    return crypto_derive((struct crypto_span){key, HS_KEY},
                         (struct crypto_span){salt, sizeof salt - 1},
                         (struct crypto_span){info, strlen(info)}, out, HS_KEY, err);
}

static enum hvd_status hello_proof(const uint8_t key[HS_KEY], const uint8_t *hello,
                                   uint8_t proof[PROOF], struct hvd_error *err)
{
    uint8_t k[HS_KEY];
    enum hvd_status status = key_from_job(key, "hello", k, err);

    if (status == HVD_OK)
        status = crypto_mac(k, hello, AT_PROOF, proof, err);
    explicit_bzero(k, sizeof k);
    return status;
}

static enum hvd_status reply_proof(const uint8_t k[HS_KEY], const uint8_t *hello,
                                   const uint8_t *reply, uint8_t proof[PROOF],
                                   struct hvd_error *err)
{
    uint8_t text[HS_HELLO + AT_PROOF];

    memcpy(text, hello, HS_HELLO);
    memcpy(text + HS_HELLO, reply, AT_PROOF);
    return crypto_mac(k, text, sizeof text, proof, err);
}

static enum hvd_status refusal_proof(const uint8_t key[HS_KEY], const uint8_t *hello,
                                     const uint8_t *reply, uint8_t proof[PROOF],
                                     struct hvd_error *err)
{
    uint8_t k[HS_KEY];
    enum hvd_status status = key_from_job(key, "refusal", k, err);

    if (status == HVD_OK)
        status = reply_proof(k, hello, reply, proof, err);
    explicit_bzero(k, sizeof k);
    return status;
}

static enum hvd_status confirm_proof(const uint8_t k[HS_KEY], const uint8_t *hello,
                                     const uint8_t *reply, const uint8_t *confirm,
                                     uint8_t proof[PROOF], struct hvd_error *err)
{
    uint8_t text[HS_HELLO + HS_REPLY + AT_CONFIRM_PROOF];

    memcpy(text, hello, HS_HELLO);
    memcpy(text + HS_HELLO, reply, HS_REPLY);
    memcpy(text + HS_HELLO + HS_REPLY, confirm, AT_CONFIRM_PROOF);
    return crypto_mac(k, text, sizeof text, proof, err);
}

struct connection_keys {
    uint8_t reply[HS_KEY], confirm[HS_KEY], dialer[HS_KEY], listener[HS_KEY];
};

/* secret: this side's X25519 key; peer: the other's public one. */
static enum hvd_status derive(const uint8_t key[HS_KEY], const uint8_t *secret,
                              const uint8_t *peer, const uint8_t *hello,
                              const uint8_t *reply, struct connection_keys *k,
                              struct hvd_error *err)
{
    static const char label[] = "horovod connection";
    uint8_t mixed[2 * HS_KEY], salt[HS_HELLO + AT_PROOF];
    uint8_t info[sizeof label - 1 + 16];
    enum hvd_status status;

    TRY(crypto_agree(secret, peer, mixed, err));
    memcpy(mixed + HS_KEY, key, HS_KEY);
    memcpy(salt, hello, HS_HELLO);
    memcpy(salt + HS_HELLO, reply, AT_PROOF);
    memcpy(info, label, sizeof label - 1);
    memcpy(info + sizeof label - 1, hello + AT_PURPOSE, 16);
    status = crypto_derive((struct crypto_span){mixed, sizeof mixed},
                           (struct crypto_span){salt, sizeof salt},
                           (struct crypto_span){info, sizeof info}, (uint8_t *)k,
                           sizeof *k, err);
    explicit_bzero(mixed, sizeof mixed);
    return status;
}

/* ---- Versions --------------------------------------------------------------------- */

static void put_version(uint8_t *message)
{
    bytes_put_u16(message + AT_VERSION, HS_PROTOCOL);
    snprintf((char *)message + AT_LIBRARY, LIBRARY, "%s", hvd_version());
}

/* Proved bytes only.  The result ends with 0 and error_set makes it printable. */
static void get_library(const uint8_t *message, char library[HS_VERSION_TEXT])
{
    memcpy(library, message + AT_LIBRARY, LIBRARY);
    library[LIBRARY] = '\0';
}

static bool is_message(const uint8_t *message, const char *magic)
{
    return memcmp(message, magic, 4) == 0;
}

static bool is_other_version(const uint8_t *message)
{
    return bytes_get_u16(message + AT_VERSION) != HS_PROTOCOL;
}

/* The peer holds the key, so what it says of itself counts and can be shown. */
static enum hvd_status versions_differ(const uint8_t *message, struct hvd_error *err)
{
    char library[HS_VERSION_TEXT];
    unsigned theirs = bytes_get_u16(message + AT_VERSION);

    get_library(message, library);
    return error_set(err, HVD_VERSION, -1,
                     "the peer speaks protocol %u (horovod %s), this process protocol %u "
                     "(horovod %s); install the same version everywhere",
                     theirs, library, HS_PROTOCOL, hvd_version());
}

/* Rule 5.  The number alone: nothing else of a stranger's bytes has a meaning. */
static enum hvd_status version_not_proved(const uint8_t *message, struct hvd_error *err)
{
    return error_set(err, HVD_AUTH, -1,
                     "the peer did not prove that it belongs to this job; it speaks "
                     "protocol %u, this process protocol %u (horovod %s): another program, "
                     "or another version and another key",
                     bytes_get_u16(message + AT_VERSION), HS_PROTOCOL, hvd_version());
}

/* ---- The dialer ------------------------------------------------------------------- */

static bool is_identity(const struct hs_identity *id)
{
    return id->purpose >= HS_RENDEZVOUS && id->purpose < HS_PURPOSE_END &&
           id->self != id->peer && memchr(id->job_id, 0, sizeof id->job_id) != NULL;
}

enum hvd_status hs_dial(struct hs_dialer *d, const uint8_t key[HS_KEY],
                        const struct hs_identity *id, uint8_t hello[HS_HELLO],
                        struct hvd_error *err)
{
    memset(d, 0, sizeof *d);
    if (!is_identity(id))
        return error_set(err, HVD_INVALID, -1,
                         "handshake: purpose %d, from rank %d to rank %d", (int)id->purpose,
                         (int)id->self, (int)id->peer);
    d->id = *id;
    d->key = key;
    memcpy(d->hello, "HvdH", 4);
    put_version(d->hello);
    TRY(crypto_random(d->hello + AT_NONCE, NONCE, err));
    TRY(crypto_pair(d->secret, d->hello + AT_PUBLIC, err));
    bytes_put_u32(d->hello + AT_PURPOSE, (uint32_t)id->purpose);
    bytes_put_u32(d->hello + AT_DIALER, (uint32_t)id->self);
    bytes_put_u32(d->hello + AT_DIALLED, (uint32_t)id->peer);
    bytes_put_u32(d->hello + AT_GENERATION, id->generation);
    memcpy(d->hello + AT_JOB, id->job_id, strnlen(id->job_id, JOB));
    TRY(hello_proof(key, d->hello, d->hello + AT_PROOF, err));
    memcpy(hello, d->hello, HS_HELLO);
    return HVD_OK;
}

static enum hvd_status refused_for_version(struct hs_dialer *d, const uint8_t *reply,
                                           struct hvd_error *err)
{
    uint8_t proof[PROOF];

    TRY(refusal_proof(d->key, d->hello, reply, proof, err));
    if (!crypto_equal(proof, reply + AT_PROOF, PROOF))
        return version_not_proved(reply, err);
    return versions_differ(reply, err);
}

static enum hvd_status make_confirm(struct hs_dialer *d, const uint8_t *reply,
                                    const struct connection_keys *k, uint8_t *confirm,
                                    struct hs_keys *keys, struct hvd_error *err)
{
    uint8_t proof[PROOF];

    TRY(reply_proof(k->reply, d->hello, reply, proof, err));
    if (!crypto_equal(proof, reply + AT_PROOF, PROOF))
        return error_set(err, HVD_AUTH, -1, "%s", not_proved);
    memset(confirm, 0, HS_CONFIRM);
    memcpy(confirm, "HvdC", 4);
    TRY(confirm_proof(k->confirm, d->hello, reply, confirm, confirm + AT_CONFIRM_PROOF,
                      err));
    get_library(reply, d->peer_version);
    memcpy(keys->send, k->dialer, HS_KEY);
    memcpy(keys->receive, k->listener, HS_KEY);
    return HVD_OK;
}

enum hvd_status hs_dial_finish(struct hs_dialer *d, const uint8_t reply[HS_REPLY],
                               uint8_t confirm[HS_CONFIRM], struct hs_keys *keys,
                               struct hvd_error *err)
{
    struct connection_keys k;
    enum hvd_status status;

    if (!is_message(reply, "HvdR"))
        return error_set(err, HVD_AUTH, -1, "%s", not_proved);
    if (is_other_version(reply))
        return refused_for_version(d, reply, err);
    status = derive(d->key, d->secret, reply + AT_PUBLIC, d->hello, reply, &k, err);
    if (status == HVD_OK)
        status = make_confirm(d, reply, &k, confirm, keys, err);
    explicit_bzero(&k, sizeof k);
    return status;
}

void hs_dialer_release(struct hs_dialer *d)
{
    explicit_bzero(d, sizeof *d);
}

/* ---- The listener ----------------------------------------------------------------- */

/* The proof of hello has been checked. */
static bool is_expected(const struct hs_identity *expect, const struct hs_identity *id,
                        int32_t dialled)
{
    return dialled == expect->self && id->self == expect->self && is_identity(id) &&
           (expect->purpose == 0 || id->purpose == expect->purpose) &&
           (expect->peer == HS_ANY_RANK || id->peer == expect->peer) &&
           (expect->generation == HS_ANY_GENERATION ||
            id->generation == expect->generation) &&
           strcmp(id->job_id, expect->job_id) == 0;
}

static void get_identity(const uint8_t *hello, const struct hs_identity *expect,
                         struct hs_identity *id)
{
    id->purpose = (enum hs_purpose)bytes_get_u32(hello + AT_PURPOSE);
    id->self = expect->self;
    id->peer = (int32_t)bytes_get_u32(hello + AT_DIALER);
    id->generation = bytes_get_u32(hello + AT_GENERATION);
    memcpy(id->job_id, hello + AT_JOB, JOB);
    id->job_id[JOB] = '\0';
}

/* The rest of the reply for a dialer that may come in. */
static enum hvd_status answer(struct hs_listener *l, struct hvd_error *err)
{
    uint8_t secret[HS_KEY];
    struct connection_keys k = {0};
    enum hvd_status status;

    status = crypto_pair(secret, l->reply + AT_PUBLIC, err);
    if (status == HVD_OK)
        status = derive(l->key, secret, l->hello + AT_PUBLIC, l->hello, l->reply, &k, err);
    explicit_bzero(secret, sizeof secret);
    if (status == HVD_OK)
        status = reply_proof(k.reply, l->hello, l->reply, l->reply + AT_PROOF, err);
    memcpy(l->confirm_key, k.confirm, HS_KEY);
    memcpy(l->keys.send, k.listener, HS_KEY);
    memcpy(l->keys.receive, k.dialer, HS_KEY);
    explicit_bzero(&k, sizeof k);
    return status;
}

static enum hvd_status refuse_version(struct hs_listener *l, struct hvd_error *err)
{
    bytes_put_u16(l->reply + AT_REFUSAL, 1);
    TRY(refusal_proof(l->key, l->hello, l->reply, l->reply + AT_PROOF, err));
    return versions_differ(l->hello, err);
}

static enum hvd_status examine(struct hs_listener *l, const struct hs_identity *expect,
                               struct hvd_error *err)
{
    uint8_t proof[PROOF];

    if (!is_message(l->hello, "HvdH"))
        return error_set(err, HVD_AUTH, -1, "%s", not_proved);
    TRY(hello_proof(l->key, l->hello, proof, err));
    if (!crypto_equal(proof, l->hello + AT_PROOF, PROOF))
        return is_other_version(l->hello) ? version_not_proved(l->hello, err)
                                          : error_set(err, HVD_AUTH, -1, "%s", not_proved);
    if (is_other_version(l->hello))
        return refuse_version(l, err);
    get_identity(l->hello, expect, &l->id);
    if (!is_expected(expect, &l->id, (int32_t)bytes_get_u32(l->hello + AT_DIALLED)))
        return error_set(err, HVD_AUTH, -1, "%s", not_proved);
    return answer(l, err);
}

enum hvd_status hs_accept(struct hs_listener *l, const uint8_t key[HS_KEY],
                          const struct hs_identity *expect,
                          const uint8_t hello[HS_HELLO], uint8_t reply[HS_REPLY],
                          struct hvd_error *err)
{
    enum hvd_status status;

    memset(l, 0, sizeof *l);
    l->key = key;
    memcpy(l->hello, hello, HS_HELLO);
    memcpy(l->reply, "HvdR", 4);
    put_version(l->reply);
    TRY(crypto_random(l->reply + AT_NONCE, NONCE, err));
    status = examine(l, expect, err);
    l->key = NULL;
    memcpy(reply, l->reply, HS_REPLY);
    return status;
}

enum hvd_status hs_accept_finish(struct hs_listener *l, const uint8_t confirm[HS_CONFIRM],
                                 struct hs_keys *keys, struct hvd_error *err)
{
    uint8_t proof[PROOF];

    TRY(confirm_proof(l->confirm_key, l->hello, l->reply, confirm, proof, err));
    if (!is_message(confirm, "HvdC") ||
        !crypto_equal(proof, confirm + AT_CONFIRM_PROOF, PROOF))
        return error_set(err, HVD_AUTH, -1, "%s", not_proved);
    get_library(l->hello, l->peer_version);
    *keys = l->keys;
    return HVD_OK;
}

void hs_listener_release(struct hs_listener *l)
{
    explicit_bzero(l, sizeof *l);
}

/* See secret.h. */
#include "secret.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 16, LEAST = 16 };

/* --- libsodium: its declarations are repeated here, so that it need not be installed to build --- */

typedef unsigned char byte;
typedef unsigned long long length;

static struct {
    int (*sodium_init)(void);
    void (*sodium_memzero)(void *memory, size_t bytes);
    int (*sodium_memcmp)(const void *a, const void *b, size_t bytes);
    int (*crypto_generichash)(byte *out, size_t out_bytes, const byte *in, length in_bytes, const byte *key,
                              size_t key_bytes);
    int (*crypto_scalarmult_base)(byte *public, const byte *private);
    int (*crypto_scalarmult)(byte *shared, const byte *private, const byte *public);
    int (*crypto_aead_chacha20poly1305_ietf_encrypt_detached)(byte *out, byte *tag, length *tag_bytes, const byte *in,
                                                              length bytes, const byte *beside, length beside_bytes,
                                                              const byte *unused, const byte *nonce, const byte *key);
    int (*crypto_aead_chacha20poly1305_ietf_decrypt_detached)(byte *out, byte *unused, const byte *in, length bytes,
                                                              const byte *tag, const byte *beside, length beside_bytes,
                                                              const byte *nonce, const byte *key);
} sodium;
static bool usable;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool open_library(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    bool complete = handle != NULL;
#define FIND(name)                                                                                                     \
    if (complete)                                                                                                      \
        complete = (sodium.name = (__typeof__(sodium.name))dlsym(handle, #name)) != NULL;
    FIND(sodium_init)
    FIND(sodium_memzero)
    FIND(sodium_memcmp)
    FIND(crypto_generichash)
    FIND(crypto_scalarmult_base)
    FIND(crypto_scalarmult)
    FIND(crypto_aead_chacha20poly1305_ietf_encrypt_detached)
    FIND(crypto_aead_chacha20poly1305_ietf_decrypt_detached)
#undef FIND
    return complete && sodium.sodium_init() >= 0;
}

static void find_library(void)
{
    const char *wanted = getenv("LUDA_SODIUM");
    if (wanted && *wanted)
        usable = open_library(wanted);
    else
        usable = open_library("libsodium.so.23") || open_library("libsodium.so.26") || open_library("libsodium.so");
}

/* --- The secret --- */

struct luda_secret {
    atomic_int references;
    bool encrypt;
    uint8_t key[LUDA_KEY_BYTES];
};

luda_status luda__secret_new(const luda_comm_options *options, const char *who, luda_secret **out)
{
    static const char domain[] = "LUDA shared secret";
    luda_secret *secret;
    if (!options->secret) {
        if (options->encrypt)
            return luda__fail(LUDA_EINVAL, "%s: encrypt needs a secret", who);
        *out = NULL;
        return LUDA_OK;
    }
    if (options->secret_bytes < LEAST)
        return luda__fail(LUDA_EINVAL,
                          "%s: the secret has %zu bytes and needs at least %d; \"head -c 32 /dev/urandom | base64\" makes one",
                          who, options->secret_bytes, LEAST);
    pthread_once(&once, find_library);
    if (!usable)
        return luda__fail(LUDA_ENOTSUP, "%s: a secret needs libsodium, which was not found; install libsodium23", who);
    secret = malloc(sizeof *secret);
    if (!secret)
        return luda__fail(LUDA_ENOMEM, "%s: no memory for the secret", who);
    atomic_init(&secret->references, 1);
    secret->encrypt = options->encrypt != 0;
    sodium.crypto_generichash(secret->key, sizeof secret->key, options->secret, options->secret_bytes,
                              (const byte *)domain, sizeof domain - 1);
    *out = secret;
    return LUDA_OK;
}

luda_secret *luda__secret_retain(luda_secret *secret)
{
    if (secret)
        atomic_fetch_add(&secret->references, 1);
    return secret;
}

void luda__secret_release(luda_secret *secret)
{
    if (!secret || atomic_fetch_sub(&secret->references, 1) > 1)
        return;
    sodium.sodium_memzero(secret, sizeof *secret);
    free(secret);
}

bool luda__secret_encrypts(const luda_secret *secret)
{
    return secret && secret->encrypt;
}

/* --- The seal --- */

enum { BUFFER = LUDA_FRAME_BYTES + TAG + LUDA_SEAL_BYTES + TAG }; /* a header and a part */

/* One direction of a connection. */
typedef struct half {
    uint8_t key[LUDA_KEY_BYTES];
    uint64_t count; /* of parts */
    uint64_t left;  /* of the frame's payload */
    uint8_t *bytes; /* [BUFFER], only while something is in it: from..to */
    size_t from, to;
} half;

struct luda_seal {
    bool encrypt;
    half in, out;
    size_t open; /* bytes at in.from that were found right and are not handed out yet */
};

static size_t next_part(const half *h)
{
    if (h->left == 0)
        return LUDA_FRAME_BYTES;
    return h->left < LUDA_SEAL_BYTES ? (size_t)h->left : LUDA_SEAL_BYTES;
}

/* Both sides know from each header how many parts follow. */
static bool go_on(half *h, const uint8_t *part, size_t bytes)
{
    luda_frame frame;
    h->count++;
    if (h->left > 0) {
        h->left -= bytes;
        return true;
    }
    if (!luda__frame_read(part, &frame))
        return false;
    h->left = frame.payload;
    return true;
}

static void number(uint64_t count, byte nonce[12])
{
    memset(nonce, 0, 12);
    for (int i = 0; i < 8; i++)
        nonce[4 + i] = (byte)(count >> (8 * i));
}

static bool make_room(half *h)
{
    if (!h->bytes) {
        h->from = h->to = 0;
        h->bytes = malloc(BUFFER);
    }
    if (h->bytes && h->from > 0) {
        memmove(h->bytes, h->bytes + h->from, h->to - h->from);
        h->to -= h->from;
        h->from = 0;
    }
    if (!h->bytes)
        errno = ENOMEM;
    return h->bytes != NULL;
}

static void drop_if_empty(half *h)
{
    if (h->from < h->to)
        return;
    free(h->bytes);
    h->bytes = NULL;
    h->from = h->to = 0;
}

void luda__seal_release(luda_seal *seal)
{
    if (!seal)
        return;
    free(seal->in.bytes);
    free(seal->out.bytes);
    sodium.sodium_memzero(seal, sizeof *seal);
    free(seal);
}

bool luda__sealed_pending(const luda_seal *seal)
{
    return seal && seal->out.from < seal->out.to;
}

int luda__sealed_flush(luda_seal *seal, int fd)
{
    while (luda__sealed_pending(seal)) {
        half *out = &seal->out;
        ssize_t n = send(fd, out->bytes + out->from, out->to - out->from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        out->from += (size_t)n;
        drop_if_empty(out);
    }
    return 0;
}

static size_t gather(uint8_t *to, size_t bytes, const struct iovec *pieces, size_t count, size_t skip)
{
    size_t got = 0;
    for (size_t i = 0; i < count && got < bytes; i++) {
        size_t there = pieces[i].iov_len > skip ? pieces[i].iov_len - skip : 0;
        size_t n = there < bytes - got ? there : bytes - got;
        if (n > 0)
            memcpy(to + got, (const uint8_t *)pieces[i].iov_base + skip, n);
        skip -= pieces[i].iov_len < skip ? pieces[i].iov_len : skip;
        got += n;
    }
    return got;
}

/* Seals the part that stands at out->to. */
static bool close_part(luda_seal *seal, size_t bytes)
{
    half *out = &seal->out;
    uint8_t *part = out->bytes + out->to;
    byte nonce[12];
    bool known;
    number(out->count, nonce);
    known = go_on(out, part, bytes);
    sodium.crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        part, part + bytes, NULL, part, seal->encrypt ? bytes : 0, part, seal->encrypt ? 0 : bytes, NULL, nonce, out->key);
    out->to += bytes + TAG;
    return known;
}

ssize_t luda__sealed_send(luda_seal *seal, int fd, const struct iovec *pieces, size_t count)
{
    const struct msghdr message = { .msg_iov = (struct iovec *)pieces, .msg_iovlen = count };
    half *out = seal ? &seal->out : NULL;
    size_t taken = 0;
    if (!seal)
        return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (luda__sealed_flush(seal, fd) < 0 || !make_room(out))
        return -1;
    while (out->to + next_part(out) + TAG <= BUFFER) {
        size_t part = next_part(out), got = gather(out->bytes + out->to, part, pieces, count, taken);
        if (got < part)
            break;
        if (!close_part(seal, part)) {
            errno = EBADMSG;
            return -1;
        }
        taken += part;
    }
    drop_if_empty(out);
    return luda__sealed_flush(seal, fd) < 0 && errno != EAGAIN && errno != EWOULDBLOCK ? -1 : (ssize_t)taken;
}

bool luda__sealed_ready(const luda_seal *seal)
{
    return seal && (seal->open > 0 || seal->in.to - seal->in.from >= next_part(&seal->in) + TAG);
}

static bool open_part(luda_seal *seal)
{
    half *in = &seal->in;
    size_t bytes = next_part(in);
    uint8_t *part = in->bytes + in->from;
    byte nonce[12];
    number(in->count, nonce);
    if (sodium.crypto_aead_chacha20poly1305_ietf_decrypt_detached(part, NULL, part, seal->encrypt ? bytes : 0, part + bytes,
                                                                  part, seal->encrypt ? 0 : bytes, nonce, in->key) != 0 ||
        !go_on(in, part, bytes)) {
        errno = EBADMSG;
        return false;
    }
    seal->open = bytes;
    return true;
}

ssize_t luda__sealed_recv(luda_seal *seal, int fd, void *memory, size_t room)
{
    half *in = seal ? &seal->in : NULL;
    size_t n;
    if (!seal)
        return recv(fd, memory, room, MSG_DONTWAIT);
    while (!luda__sealed_ready(seal)) {
        ssize_t got = make_room(in) ? recv(fd, in->bytes + in->to, BUFFER - in->to, MSG_DONTWAIT) : -1;
        if (got <= 0) {
            drop_if_empty(in);
            return got;
        }
        in->to += (size_t)got;
    }
    if (seal->open == 0 && !open_part(seal))
        return -1;
    n = seal->open < room ? seal->open : room;
    memcpy(memory, in->bytes + in->from, n);
    seal->open -= n;
    in->from += n + (seal->open == 0 ? TAG : 0);
    drop_if_empty(in);
    return (ssize_t)n;
}

/* --- The greeting --- */

enum { AT_ANSWERER = LUDA_FRAME_BYTES, AT_ENCRYPT = AT_ANSWERER + 4, AT_CALLER = AT_ENCRYPT + 1,
       AT_ANSWER = AT_CALLER + LUDA_NONCE_BYTES, WORDS = AT_ANSWER + LUDA_NONCE_BYTES };
enum { CALLER_PROOF = 1, ANSWERER_PROOF, CALLER_KEY, ANSWERER_KEY };

/* shared: of the two fresh keys, or NULL. */
static void derive(const luda_greeting *g, int purpose, const uint8_t *shared, uint8_t out[LUDA_KEY_BYTES])
{
    uint8_t words[WORDS + 1 + LUDA_KEY_BYTES];
    memcpy(words, g->words, WORDS);
    words[WORDS] = (uint8_t)purpose;
    if (shared)
        memcpy(words + WORDS + 1, shared, LUDA_KEY_BYTES);
    sodium.crypto_generichash(out, LUDA_KEY_BYTES, words, WORDS + 1 + (shared ? LUDA_KEY_BYTES : 0), g->secret->key,
                              LUDA_KEY_BYTES);
    sodium.sodium_memzero(words, sizeof words);
}

/* A fresh key pair, whose public half is also this side's nonce. */
static luda_status make_key(luda_greeting *g, uint8_t *public)
{
    LUDA_TRY(luda__random_bytes(g->key, LUDA_KEY_BYTES));
    sodium.crypto_scalarmult_base(public, g->key);
    return LUDA_OK;
}

static void begin(luda_greeting *g, const luda_secret *secret, uint32_t answerer, bool calls)
{
    *g = (luda_greeting){ .secret = secret, .calls = calls, .next = calls ? LUDA_FRAME_CHALLENGE : LUDA_FRAME_KNOCK };
    for (int i = 0; i < 4; i++)
        g->words[AT_ANSWERER + i] = (uint8_t)(answerer >> (8 * i));
}

static size_t say(luda_frame_kind kind, const uint8_t payload[LUDA_NONCE_BYTES], uint8_t *message)
{
    luda_frame frame = { .kind = kind, .payload = LUDA_NONCE_BYTES };
    luda__frame_write(&frame, message);
    memcpy(message + LUDA_FRAME_BYTES, payload, LUDA_NONCE_BYTES);
    return LUDA_FRAME_BYTES + LUDA_NONCE_BYTES;
}

luda_status luda__greeting_call(luda_greeting *g, const luda_secret *secret, const luda_frame *who, uint32_t answerer,
                                uint8_t *message)
{
    luda_frame frame = *who;
    begin(g, secret, answerer, true);
    LUDA_TRY(make_key(g, g->words + AT_CALLER));
    frame.kind = LUDA_FRAME_KNOCK;
    frame.payload = LUDA_NONCE_BYTES + 1;
    luda__frame_write(&frame, g->words);
    g->encrypt = secret->encrypt;
    g->words[AT_ENCRYPT] = g->encrypt;
    memcpy(message, g->words, LUDA_FRAME_BYTES);
    memcpy(message + LUDA_FRAME_BYTES, g->words + AT_CALLER, LUDA_NONCE_BYTES);
    message[LUDA_FRAME_BYTES + LUDA_NONCE_BYTES] = g->encrypt;
    return LUDA_OK;
}

void luda__greeting_await(luda_greeting *g, const luda_secret *secret, uint32_t answerer)
{
    begin(g, secret, answerer, false);
}

static bool proves(const luda_greeting *g, int purpose, const uint8_t *proof)
{
    uint8_t right[LUDA_KEY_BYTES];
    derive(g, purpose, NULL, right);
    return sodium.sodium_memcmp(right, proof, sizeof right) == 0;
}

static luda_seal *new_seal(luda_greeting *g)
{
    uint8_t shared[LUDA_KEY_BYTES];
    luda_seal *seal = calloc(1, sizeof *seal);
    if (!seal || sodium.crypto_scalarmult(shared, g->key, g->words + (g->calls ? AT_ANSWER : AT_CALLER)) != 0) {
        free(seal);
        return NULL;
    }
    seal->encrypt = g->encrypt;
    derive(g, g->calls ? CALLER_KEY : ANSWERER_KEY, shared, seal->out.key);
    derive(g, g->calls ? ANSWERER_KEY : CALLER_KEY, shared, seal->in.key);
    sodium.sodium_memzero(shared, sizeof shared);
    sodium.sodium_memzero(g->key, sizeof g->key);
    return seal;
}

static size_t say_proof(const luda_greeting *g, int purpose, uint8_t *message)
{
    uint8_t proof[LUDA_KEY_BYTES];
    derive(g, purpose, NULL, proof);
    return say(LUDA_FRAME_PROOF, proof, message);
}

luda_greeted luda__greeting_take(luda_greeting *g, const luda_frame *frame, const uint8_t *payload,
                                 uint8_t answer[LUDA_GREETING_BYTES], size_t *bytes, luda_seal **seal)
{
    size_t expected = LUDA_NONCE_BYTES + (frame->kind == LUDA_FRAME_KNOCK);
    *bytes = 0;
    if (frame->kind != g->next || frame->payload != expected)
        return LUDA_GREETED_WRONG;
    g->next = LUDA_FRAME_PROOF;
    if (frame->kind == LUDA_FRAME_KNOCK) {
        if (make_key(g, g->words + AT_ANSWER) != LUDA_OK)
            return LUDA_GREETED_WRONG;
        luda__frame_write(frame, g->words);
        memcpy(g->words + AT_CALLER, payload, LUDA_NONCE_BYTES);
        g->encrypt = payload[LUDA_NONCE_BYTES] != 0;
        g->words[AT_ENCRYPT] = g->encrypt;
        *bytes = say(LUDA_FRAME_CHALLENGE, g->words + AT_ANSWER, answer);
        return LUDA_GREETED_ON;
    }
    if (frame->kind == LUDA_FRAME_CHALLENGE) {
        memcpy(g->words + AT_ANSWER, payload, LUDA_NONCE_BYTES);
        *bytes = say_proof(g, CALLER_PROOF, answer);
        return LUDA_GREETED_ON;
    }
    if (!proves(g, g->calls ? ANSWERER_PROOF : CALLER_PROOF, payload) || !(*seal = new_seal(g)))
        return LUDA_GREETED_WRONG;
    g->next = LUDA_FRAME_COUNT;
    if (!g->calls)
        *bytes = say_proof(g, ANSWERER_PROOF, answer);
    return LUDA_GREETED_DONE;
}

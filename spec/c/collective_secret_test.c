/* Shared secrets: the greeting and the seal alone, and what libsodium makes of the same words through other functions. */
#include "collective_joiners.h"

#include "../../runtime/collective/secret.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static luda_secret *secret_of(const char *text, bool encrypt)
{
    luda_comm_options options = with(text, encrypt, 0);
    luda_secret *secret = NULL;
    EXPECT_OK(luda__secret_new(&options, "test", &secret));
    return secret;
}

/* --- The greeting --- */

enum { LONGEST = 3 }; /* messages after the first */

/* What was said between a caller and an answerer, and how it ended. */
typedef struct talk {
    uint8_t said[1 + LONGEST][LUDA_GREETING_BYTES];
    luda_greeted caller, answerer;
    luda_seal *seals[2];
} talk;

static luda_frame hello(void)
{
    return (luda_frame){ .rank = 3, .size = 4, .step = 1, .session = { 1, 2, 3, 250 } };
}

static luda_greeted hear(luda_greeting *g, const uint8_t *message, uint8_t *answer, luda_seal **seal)
{
    luda_frame frame;
    size_t bytes;
    EXPECT(luda__frame_read(message, &frame));
    return luda__greeting_take(g, &frame, message + LUDA_FRAME_BYTES, answer, &bytes, seal);
}

static void spoil(uint8_t *message, int at)
{
    if (at >= 0)
        message[at] ^= at == LUDA_GREETING_BYTES - 1 ? 1 : 0x10; /* the last says whether to encrypt: 0 or 1 */
}

/* `said` of the caller and what it is answered; a bit of message `which` (0 to 3) is changed at byte `at`. */
static talk converse(const char *his, const char *hers, uint32_t answerer, int which, int at)
{
    talk t = { .caller = LUDA_GREETED_ON, .answerer = LUDA_GREETED_ON };
    luda_secret *a = secret_of(his, true), *b = secret_of(hers, true);
    luda_greeting caller, called;
    luda_frame who = hello();
    EXPECT_OK(luda__greeting_call(&caller, a, &who, 2, t.said[0]));
    luda__greeting_await(&called, b, answerer);
    for (int m = 0; m < 4; m++) {
        luda_greeted *side = m % 2 ? &t.caller : &t.answerer;
        if (m == which)
            spoil(t.said[m], at);
        *side = hear(m % 2 ? &caller : &called, t.said[m], t.said[m < 3 ? m + 1 : 0], &t.seals[m % 2]);
        if (*side == LUDA_GREETED_WRONG)
            break;
    }
    luda__secret_release(a);
    luda__secret_release(b);
    return t;
}

static void forget(talk *t)
{
    luda__seal_release(t->seals[0]);
    luda__seal_release(t->seals[1]);
}

static bool both_done(talk t)
{
    bool yes = t.caller == LUDA_GREETED_DONE && t.answerer == LUDA_GREETED_DONE;
    EXPECT((t.seals[0] != NULL) == (t.answerer == LUDA_GREETED_DONE) && (t.seals[1] != NULL) == (t.caller == LUDA_GREETED_DONE));
    forget(&t);
    return yes;
}

static void test_greeting(void)
{
    EXPECT(both_done(converse(SECRET, SECRET, 2, -1, -1)));
    EXPECT(!both_done(converse(SECRET, OTHER, 2, -1, -1)));
    EXPECT(!both_done(converse(SECRET, SECRET, 1, -1, -1))); /* carried to another rank */
    EXPECT(!both_done(converse(SECRET, SECRET, LUDA_ANSWERER_SERVER, -1, -1)));
    /* Every byte of the first message that says who: rank, size, channel, session; both nonces; encrypt; both proofs. */
    for (int at = 32; at < LUDA_GREETING_BYTES; at++)
        EXPECT(!both_done(converse(SECRET, SECRET, 2, 0, at)));
    for (int m = 1; m < 4; m++)
        for (int at = LUDA_FRAME_BYTES; at < LUDA_FRAME_BYTES + 32; at++)
            EXPECT(!both_done(converse(SECRET, SECRET, 2, m, at)));
    luda_secret *secret = secret_of(SECRET, false);
    luda_greeting caller, called, again;
    luda_frame who = hello(), frame;
    uint8_t knock[LUDA_GREETING_BYTES], challenge[LUDA_GREETING_BYTES], proof[LUDA_GREETING_BYTES], reply[LUDA_GREETING_BYTES];
    luda_seal *seal = NULL;
    size_t bytes;
    EXPECT_OK(luda__greeting_call(&caller, secret, &who, 2, knock));
    luda__greeting_await(&called, secret, 2);
    EXPECT(hear(&called, knock, challenge, &seal) == LUDA_GREETED_ON);
    EXPECT(hear(&caller, challenge, proof, &seal) == LUDA_GREETED_ON);
    /* The caller's own words are no answer: not its first, and its proof is not the other side's. */
    EXPECT(hear(&caller, knock, reply, &seal) == LUDA_GREETED_WRONG);
    EXPECT(hear(&caller, proof, reply, &seal) == LUDA_GREETED_WRONG && !seal);
    /* Said once more to somebody who asks anew, they prove nothing. */
    luda__greeting_await(&again, secret, 2);
    EXPECT(hear(&again, knock, challenge, &seal) == LUDA_GREETED_ON);
    EXPECT(hear(&again, proof, reply, &seal) == LUDA_GREETED_WRONG && !seal);
    /* Out of order, of the wrong length, and after the end. */
    luda__greeting_await(&again, secret, 2);
    EXPECT(hear(&again, proof, reply, &seal) == LUDA_GREETED_WRONG && !seal);
    EXPECT(luda__frame_read(proof, &frame));
    frame.payload--;
    EXPECT(luda__greeting_take(&called, &frame, proof + LUDA_FRAME_BYTES, reply, &bytes, &seal) == LUDA_GREETED_WRONG);
    EXPECT(hear(&called, proof, reply, &seal) == LUDA_GREETED_DONE && seal);
    luda__seal_release(seal);
    seal = NULL;
    EXPECT(hear(&called, proof, knock, &seal) == LUDA_GREETED_WRONG && !seal);
    luda__secret_release(secret);
}

/* --- The same words through other functions of libsodium --- */

static struct {
    int (*generichash_init)(void *state, const uint8_t *key, size_t key_bytes, size_t out_bytes);
    int (*generichash_update)(void *state, const uint8_t *in, unsigned long long bytes);
    int (*generichash_final)(void *state, uint8_t *out, size_t bytes);
    int (*scalarmult)(uint8_t *shared, const uint8_t *private, const uint8_t *public);
    int (*stream)(uint8_t *out, unsigned long long bytes, const uint8_t *nonce, const uint8_t *key);
    int (*onetimeauth)(uint8_t *out, const uint8_t *in, unsigned long long bytes, const uint8_t *key);
} other_way;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    EXPECT(found != NULL);
    return found;
}

typedef struct words { const void *bytes; size_t count; } words;

static void hash(const uint8_t *key, size_t key_bytes, const words *list, int count, uint8_t out[32])
{
    _Alignas(64) uint8_t state[512];
    other_way.generichash_init(state, key, key_bytes, 32);
    for (int i = 0; i < count; i++)
        other_way.generichash_update(state, list[i].bytes, list[i].count);
    other_way.generichash_final(state, out, 32);
}

/* RFC 8439: the tag's key is the first block of the stream; then what is beside, the text, and both lengths. */
static bool opens(const uint8_t *key, uint8_t count, const uint8_t *sealed, size_t bytes, bool encrypted, const uint8_t *text)
{
    uint8_t stream[64 + 128], nonce[12] = { 0, 0, 0, 0, count }, tag[16], covered[128 + 32] = { 0 };
    size_t padded = (bytes + 15) / 16 * 16;
    other_way.stream(stream, sizeof stream, nonce, key);
    memcpy(covered, sealed, bytes);
    covered[padded + (encrypted ? 8 : 0)] = (uint8_t)bytes;
    other_way.onetimeauth(tag, covered, padded + 16, stream);
    for (size_t i = 0; i < bytes; i++)
        if ((sealed[i] ^ (encrypted ? stream[64 + i] : 0)) != text[i])
            return false;
    return memcmp(tag, sealed + bytes, 16) == 0;
}

static void test_known_answers(void)
{
    void *library = dlopen("libsodium.so.23", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("libsodium.so", RTLD_NOW | RTLD_LOCAL);
    *(void **)&other_way.generichash_init = symbol(library, "crypto_generichash_init");
    *(void **)&other_way.generichash_update = symbol(library, "crypto_generichash_update");
    *(void **)&other_way.generichash_final = symbol(library, "crypto_generichash_final");
    *(void **)&other_way.scalarmult = symbol(library, "crypto_scalarmult_curve25519");
    *(void **)&other_way.stream = symbol(library, "crypto_stream_chacha20_ietf");
    *(void **)&other_way.onetimeauth = symbol(library, "crypto_onetimeauth");
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        luda_secret *secret = secret_of(SECRET, encrypt);
        luda_greeting caller, called;
        luda_frame who = hello(), frame = { .kind = LUDA_FRAME_DATA, .payload = 5, .sequence = 77 };
        uint8_t said[4][LUDA_GREETING_BYTES], master[32], right[32], shared[32], none[32] = { 0 }, plain[LUDA_FRAME_BYTES + 5], sealed[256];
        luda_seal *seals[2];
        int ends[2];
        EXPECT_OK(luda__greeting_call(&caller, secret, &who, 2, said[0]));
        luda__greeting_await(&called, secret, 2);
        EXPECT(hear(&called, said[0], said[1], NULL) == LUDA_GREETED_ON);
        EXPECT(hear(&caller, said[1], said[2], NULL) == LUDA_GREETED_ON);
        /* The side of the one who answers; the seal below is the caller's. */
        EXPECT(other_way.scalarmult(shared, called.key, said[0] + LUDA_FRAME_BYTES) == 0);
        EXPECT(hear(&called, said[2], said[3], &seals[0]) == LUDA_GREETED_DONE);
        EXPECT(memcmp(called.key, none, 32) == 0);
        EXPECT(hear(&caller, said[3], sealed, &seals[1]) == LUDA_GREETED_DONE);
        hash((const uint8_t *)"LUDA shared secret", 18, &(words){ SECRET, strlen(SECRET) }, 1, master);
        for (int purpose = 1; purpose <= 3; purpose++) {
            const uint8_t called_rank[4] = { 2 }, flag = (uint8_t)encrypt, number = (uint8_t)purpose;
            const words all[] = { { said[0], LUDA_FRAME_BYTES },      { called_rank, 4 }, { &flag, 1 },
                                  { said[0] + LUDA_FRAME_BYTES, 32 }, { said[1] + LUDA_FRAME_BYTES, 32 },
                                  { &number, 1 },                     { shared, 32 } };
            hash(master, 32, all, purpose < 3 ? 6 : 7, right);
            if (purpose < 3)
                EXPECT(memcmp(right, said[1 + purpose] + LUDA_FRAME_BYTES, 32) == 0);
        }
        /* A frame of the caller, under the third. */
        luda__frame_write(&frame, plain);
        memcpy(plain + LUDA_FRAME_BYTES, "howdy", 5);
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        EXPECT(luda__sealed_send(seals[1], ends[0], &(struct iovec){ plain, sizeof plain }, 1) == (ssize_t)sizeof plain);
        EXPECT(recv(ends[1], sealed, sizeof sealed, 0) == (ssize_t)sizeof plain + 32);
        EXPECT(opens(right, 0, sealed, LUDA_FRAME_BYTES, encrypt, plain));
        EXPECT(opens(right, 1, sealed + LUDA_FRAME_BYTES + 16, 5, encrypt, plain + LUDA_FRAME_BYTES));
        for (int i = 0; i < 2; i++) {
            luda__seal_release(seals[i]);
            close(ends[i]);
        }
        luda__secret_release(secret);
    }
    dlclose(library);
}

/* --- The seal --- */

enum { MOST_FRAMES = 4 };

/* Two ends of a connection, and everything that one of them sent. */
typedef struct wire {
    int ends[2];
    luda_seal *from, *to;
    uint8_t *sealed, *plain;
    size_t sealed_bytes, plain_bytes, starts[MOST_FRAMES + 1]; /* of frames, in sealed */
} wire;

static wire new_wire(bool encrypt)
{
    wire w = { 0 };
    luda_secret *secret = secret_of(SECRET, encrypt);
    luda_greeting caller, called;
    luda_frame who = hello();
    uint8_t a[LUDA_GREETING_BYTES], b[LUDA_GREETING_BYTES];
    EXPECT_OK(luda__greeting_call(&caller, secret, &who, 2, a));
    luda__greeting_await(&called, secret, 2);
    hear(&called, a, b, NULL);
    hear(&caller, b, a, NULL);
    hear(&called, a, b, &w.to);
    hear(&caller, b, a, &w.from);
    luda__secret_release(secret);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, w.ends) == 0);
    return w;
}

static void end_wire(wire *w)
{
    luda__seal_release(w->from);
    luda__seal_release(w->to);
    close(w->ends[0]);
    close(w->ends[1]);
    free(w->sealed);
    free(w->plain);
}

/* Sends frames with payloads of these sizes and keeps what goes over the wire. */
static void send_frames(wire *w, const size_t *sizes, int count)
{
    for (int f = 0; f < count; f++) {
        luda_frame frame = { .kind = LUDA_FRAME_DATA, .payload = sizes[f], .sequence = (uint64_t)f };
        size_t bytes = LUDA_FRAME_BYTES + sizes[f], sent = 0;
        w->plain = realloc(w->plain, w->plain_bytes + bytes);
        w->sealed = realloc(w->sealed, w->sealed_bytes + bytes + 16 * (3 + sizes[f] / LUDA_SEAL_BYTES));
        luda__frame_write(&frame, w->plain + w->plain_bytes);
        for (size_t i = 0; i < sizes[f]; i++)
            w->plain[w->plain_bytes + LUDA_FRAME_BYTES + i] = (uint8_t)(i * 31 + i / 251 + (size_t)f);
        w->starts[f] = w->sealed_bytes;
        while (sent < bytes || luda__sealed_pending(w->from)) {
            size_t header = sent < LUDA_FRAME_BYTES ? LUDA_FRAME_BYTES - sent : 0;
            struct iovec pieces[2] = { { w->plain + w->plain_bytes + sent, header },
                                       { w->plain + w->plain_bytes + sent + header, bytes - sent - header } };
            ssize_t n = luda__sealed_send(w->from, w->ends[0], pieces, 2);
            EXPECT(n >= 0 || errno == EAGAIN);
            sent += n > 0 ? (size_t)n : 0;
            while ((n = recv(w->ends[1], w->sealed + w->sealed_bytes, 1 << 16, MSG_DONTWAIT)) > 0)
                w->sealed_bytes += (size_t)n;
        }
        w->plain_bytes += bytes;
        w->starts[f + 1] = w->sealed_bytes;
    }
}

/* Gives `sealed` to the other end in steps; counts what it hands out, all of which must be as sent. errno of the end. */
static int receive(wire *w, const uint8_t *sealed, size_t bytes, size_t step, size_t *got)
{
    static uint8_t out[1 << 20];
    size_t given = 0;
    *got = 0;
    for (;;) {
        ssize_t n = luda__sealed_recv(w->to, w->ends[1], out, sizeof out);
        if (n > 0) {
            EXPECT(*got + (size_t)n <= w->plain_bytes && memcmp(out, w->plain + *got, (size_t)n) == 0);
            *got += (size_t)n;
        } else if (n < 0 && errno == EAGAIN && given < bytes) {
            size_t more = step < bytes - given ? step : bytes - given;
            ssize_t sent = send(w->ends[0], sealed + given, more, MSG_DONTWAIT);
            EXPECT(sent > 0);
            given += sent > 0 ? (size_t)sent : bytes;
        } else {
            return n == 0 ? 0 : errno;
        }
    }
}

static void test_seal_sizes(bool encrypt)
{
    static const size_t sizes[][3] = { { 0, 1, 7 }, { 65535, 0, 65536 }, { 65537, 3, 300000 } };
    static const size_t steps[] = { 1 << 16, 1, 4099 };
    for (int i = 0; i < 3; i++)
        for (int s = 0; s < 3; s++) {
            wire w = new_wire(encrypt);
            size_t got;
            if (steps[s] == 1 && i > 0) {
                end_wire(&w);
                continue;
            }
            send_frames(&w, sizes[i], 3);
            EXPECT(receive(&w, w.sealed, w.sealed_bytes, steps[s], &got) == EAGAIN && got == w.plain_bytes);
            end_wire(&w);
        }
}

/* Whatever somebody on the wire makes of three frames: what is handed out is the beginning of what was sent, and no more. */
static void test_seal_tampered(bool encrypt)
{
    static const size_t sizes[3] = { 0, 5, 40 };
    wire w = new_wire(encrypt);
    uint8_t changed[1024];
    size_t got, whole;
    send_frames(&w, sizes, 3);
    whole = w.sealed_bytes;
    end_wire(&w);
    for (size_t at = 0; at < whole; at++) {
        w = new_wire(encrypt);
        send_frames(&w, sizes, 3);
        w.sealed[at] ^= (uint8_t)(1 << at % 8);
        EXPECT(receive(&w, w.sealed, whole, whole, &got) == EBADMSG && got < w.plain_bytes);
        EXPECT(luda__sealed_recv(w.to, w.ends[1], changed, sizeof changed) < 0 && errno == EBADMSG);
        end_wire(&w);
    }
    /* in order of frames: dropped, repeated, swapped, foreign; the first byte lost; the last frame cut off */
    static const int orders[][4] = { { 1, 2, -1 }, { 0, 0, 1, 2 }, { 1, 0, 2, -1 }, { 0, 2, 1, -1 }, { 0, 1, 1, 2 } };
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        size_t bytes = 0;
        w = new_wire(encrypt);
        send_frames(&w, sizes, 3);
        for (int i = 0; i < 4 && orders[o][i] >= 0; i++) {
            size_t start = w.starts[orders[o][i]], end = w.starts[orders[o][i] + 1];
            memcpy(changed + bytes, w.sealed + start, end - start);
            bytes += end - start;
        }
        EXPECT(receive(&w, changed, bytes, bytes, &got) == EBADMSG && got < w.plain_bytes);
        end_wire(&w);
    }
    w = new_wire(encrypt);
    wire foreign = new_wire(encrypt);
    send_frames(&w, sizes, 3);
    send_frames(&foreign, sizes, 3);
    EXPECT(receive(&w, foreign.sealed, foreign.sealed_bytes, 100, &got) == EBADMSG && got == 0);
    end_wire(&foreign);
    end_wire(&w);
    w = new_wire(encrypt);
    send_frames(&w, sizes, 3);
    EXPECT(receive(&w, w.sealed + 1, whole - 1, whole, &got) == EBADMSG && got == 0);
    end_wire(&w);
    w = new_wire(encrypt);
    send_frames(&w, sizes, 3);
    EXPECT(receive(&w, w.sealed, whole - 1, whole, &got) == EAGAIN && got == w.plain_bytes - 40);
    shutdown(w.ends[0], SHUT_WR);
    EXPECT(luda__sealed_recv(w.to, w.ends[1], changed, sizeof changed) == 0);
    end_wire(&w);
}

int main(void)
{
    test_greeting();
    test_known_answers();
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        test_seal_sizes(encrypt);
        test_seal_tampered(encrypt);
    }
    return summary("collective secret");
}

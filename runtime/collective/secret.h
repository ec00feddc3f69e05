/*
 * Shared secrets. Both ends of a new connection prove to each other that they know the secret, which never travels; what
 * remains is a seal, under which every later frame is authenticated and, if wanted, encrypted. The cryptography is
 * libsodium's, which is opened when first used.
 */
#ifndef LUDA_SECRET_H
#define LUDA_SECRET_H

#include "net.h"

#include <sys/uio.h>

/* --- The secret: counted, since connections on the network thread outlive the call that made them --- */

/* *out is NULL where the options have none. */
luda_status luda__secret_new(const luda_comm_options *options, const char *who, luda_secret **out);
luda_secret *luda__secret_retain(luda_secret *secret); /* NULL is fine, here and below */
void luda__secret_release(luda_secret *secret);
bool luda__secret_encrypts(const luda_secret *secret);

/*
 * --- The greeting ---
 *
 * caller to answerer: KNOCK, who it is, a fresh public key (X25519) and whether it encrypts
 * back: CHALLENGE, another fresh public key
 * caller to answerer: PROOF, a hash of all of that, keyed with the secret
 * back: PROOF, another
 *
 * The answerer, whose port is open to strangers, shows nothing that depends on the secret until the caller has proved that
 * it knows it. The proofs and the keys of the two directions are four different hashes (BLAKE2b) over the header of KNOCK
 * (session, rank, size, channel), the answerer and both public keys: none is good for another place, side or time. The
 * directions' keys are hashes of what the two fresh keys have in common as well, so that who learns the secret later cannot
 * read what was recorded.
 */

enum { LUDA_NONCE_BYTES = 32, LUDA_KEY_BYTES = 32, LUDA_GREETING_BYTES = LUDA_FRAME_BYTES + LUDA_NONCE_BYTES + 1 };
#define LUDA_ANSWERER_SERVER UINT32_MAX /* else the rank that is called */

typedef struct luda_greeting {
    const luda_secret *secret; /* lent */
    bool calls, encrypt;
    luda_frame_kind next; /* what the other side must say; LUDA_FRAME_COUNT: nothing */
    uint8_t key[LUDA_KEY_BYTES]; /* the private half of this side's, until the end */
    uint8_t words[LUDA_FRAME_BYTES + 4 + 1 + 2 * LUDA_NONCE_BYTES]; /* what both sides have agreed on, for hashing */
} luda_greeting;

typedef enum luda_greeted { LUDA_GREETED_WRONG, LUDA_GREETED_ON, LUDA_GREETED_DONE } luda_greeted;

/* The caller's first message, LUDA_GREETING_BYTES, from rank, size, session and channel in `who`. */
luda_status luda__greeting_call(luda_greeting *greeting, const luda_secret *secret, const luda_frame *who,
                                uint32_t answerer, uint8_t *message);
void luda__greeting_await(luda_greeting *greeting, const luda_secret *secret, uint32_t answerer);
/*
 * Takes the other side's message and writes the answer, of *bytes bytes (0: none). The seal belongs to the connection once
 * this returns LUDA_GREETED_DONE; the answer then still goes out without it.
 */
luda_greeted luda__greeting_take(luda_greeting *greeting, const luda_frame *frame, const uint8_t *payload,
                                 uint8_t answer[LUDA_GREETING_BYTES], size_t *bytes, luda_seal **seal);

/*
 * --- The seal ---
 *
 * A frame travels as its header and then its payload in parts of LUDA_SEAL_BYTES, each followed by a tag of 16 bytes over
 * the direction's key, the number of the part since the beginning, and the bytes. Nothing is handed out, nor believed about
 * the length of what follows, before its tag was right.
 */

enum { LUDA_SEAL_BYTES = 1 << 16 };

void luda__seal_release(luda_seal *seal);
/*
 * As sendmsg and recv without waiting; with no seal they are those. What was sent may still stand in the seal: then flush
 * when the socket takes more. The pieces hold at least LUDA_SEAL_BYTES of what is left of a frame, or all of it.
 * recv fails with EBADMSG, now and later, once something came that the other side did not send in this place.
 */
ssize_t luda__sealed_send(luda_seal *seal, int fd, const struct iovec *pieces, size_t count);
ssize_t luda__sealed_recv(luda_seal *seal, int fd, void *memory, size_t room);
/* Something waits to be flushed: sends as much as goes, and says whether something is left. */
bool luda__sealed_pending(const luda_seal *seal);
int luda__sealed_flush(luda_seal *seal, int fd); /* -1 with errno */
/* recv would hand something out without asking the socket, which will not wake anybody for it. */
bool luda__sealed_ready(const luda_seal *seal);

#endif

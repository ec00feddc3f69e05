/*
 * Joining with a secret: who does not know it, has none or wants something else is told so at once, and the session goes on
 * without it; a rendezvous that does not know it is not believed.
 */
#include "collective_joiners.h"

#include "../../runtime/collective/secret.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void add_up(luda_comm *comm, int rank, void *unused)
{
    luda_tensor *x = one(rank + 1), *y = NULL;
    int size = luda_comm_size(comm);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(item(y, 0) == size * (size + 1) / 2);
    luda_tensor_release(x);
    luda_tensor_release(y);
}

/* Rank 0 of 2 waits while rank 1 comes as it should not and learns why; then the right one comes. */
static void turned_away(const char *secret, const char *his, bool encrypt, const char *text)
{
    luda_rendezvous *home = meeting(2, secret);
    applicant a[] = { { .home = home, .rank = 0, .size = 2, .secret = secret, .timeout = 20 },
                      { .home = home, .rank = 1, .size = 2, .secret = his, .encrypt = encrypt, .timeout = 20 },
                      { .home = home, .rank = 1, .size = 2, .secret = secret, .timeout = 20 } };
    pthread_t waiting;
    double start = now();
    pthread_create(&waiting, NULL, apply, &a[0]);
    while (luda_rendezvous_missing(home, NULL, 0) == 2)
        pause_ms(1);
    apply(&a[1]);
    EXPECT_STATUS(LUDA_EMISMATCH, a[1].status);
    EXPECT(now() - start < 5);
    EXPECT(strstr(a[1].text, text) != NULL && strstr(a[1].text, "rank 1") != NULL);
    EXPECT(!strstr(a[1].text, "horse"));
    if (failed)
        printf("%s\n", a[1].text);
    apply(&a[2]);
    pthread_join(waiting, NULL);
    EXPECT(a[0].status == LUDA_OK && a[2].status == LUDA_OK);
    luda_comm *comms[] = { a[0].comm, a[2].comm };
    run_threads(comms, 2, add_up, NULL);
    luda_rendezvous_release(home);
}

/* A size and a channel of their own for each part: the secret goes with them. */
static void parts(luda_comm *comm, int rank, void *unused)
{
    luda_comm *part = NULL;
    luda_tensor *x = one(rank), *y = NULL;
    EXPECT_OK(luda_comm_split(comm, rank % 2, -rank, NULL, &part));
    EXPECT(luda_comm_size(part) == 2 && luda_comm_rank(part) == (rank < 2));
    EXPECT_OK(luda_comm_all_reduce(part, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(item(y, 0) == 2 + 2 * (rank % 2));
    luda_tensor_release(x);
    luda_tensor_release(y);
    luda_comm_release(part);
}

static void test_parts(bool encrypt)
{
    luda_comm *comms[4];
    luda_rendezvous *home = meeting(4, SECRET);
    join_all(home, 4, SECRET, encrypt, comms);
    run_threads(comms, 4, parts, NULL);
    luda_rendezvous_release(home);
}

/* --- By hand --- */

static int dial(const luda_rendezvous *home)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval patience = { .tv_sec = 10 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_port = htons((uint16_t)atoi(strrchr(luda_rendezvous_address(home), ':') + 1));
    EXPECT(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static luda_frame read_message(int fd, uint8_t *payload)
{
    uint8_t header[LUDA_FRAME_BYTES];
    luda_frame frame = { .kind = LUDA_FRAME_COUNT };
    if (recv(fd, header, sizeof header, MSG_WAITALL) == sizeof header) {
        EXPECT(luda__frame_read(header, &frame) && frame.payload < 512);
        EXPECT(recv(fd, payload, frame.payload, MSG_WAITALL) == (ssize_t)frame.payload);
    }
    payload[frame.payload] = 0;
    return frame;
}

static luda_frame stranger(const luda_rendezvous *home, int rank)
{
    luda_frame frame = { .kind = LUDA_FRAME_JOIN, .rank = (uint32_t)rank, .size = 2 };
    EXPECT(luda__session_parse(luda_rendezvous_session(home), frame.session));
    return frame;
}

/* Everything that a rank said when it joined is said again, by somebody who heard it. */
static void test_repeated_join(bool encrypt)
{
    luda_rendezvous *home = meeting(2, SECRET);
    luda_comm_options options = with(SECRET, encrypt, 0);
    luda_secret *secret;
    luda_seal *seal = NULL;
    luda_greeting greeting;
    luda_frame frame = stranger(home, 1);
    uint8_t knock[LUDA_GREETING_BYTES], proof[LUDA_GREETING_BYTES], none[LUDA_GREETING_BYTES], payload[512];
    uint8_t join[LUDA_FRAME_BYTES + 2] = { 0 };
    size_t bytes;
    int fd = dial(home), again;
    EXPECT_OK(luda__secret_new(&options, "test", &secret));
    EXPECT_OK(luda__greeting_call(&greeting, secret, &frame, LUDA_ANSWERER_SERVER, knock));
    EXPECT(send(fd, knock, sizeof knock, 0) == sizeof knock);
    frame = read_message(fd, payload);
    EXPECT(luda__greeting_take(&greeting, &frame, payload, proof, &bytes, &seal) == LUDA_GREETED_ON);
    EXPECT(send(fd, proof, bytes, 0) == (ssize_t)bytes);
    frame = read_message(fd, payload);
    EXPECT(luda__greeting_take(&greeting, &frame, payload, none, &(size_t){ 0 }, &seal) == LUDA_GREETED_DONE);
    frame = stranger(home, 1);
    frame.payload = 2;
    luda__frame_write(&frame, join);
    EXPECT(luda__sealed_send(seal, fd, &(struct iovec){ join, sizeof join }, 1) == sizeof join);
    while (luda_rendezvous_missing(home, NULL, 0) == 2)
        pause_ms(1);
    close(fd);
    while (luda_rendezvous_missing(home, NULL, 0) == 1)
        pause_ms(1);
    /* Joined, and gone. Now the echo, to which the server's new nonce is a new question. */
    again = dial(home);
    EXPECT(send(again, knock, sizeof knock, 0) == sizeof knock);
    EXPECT(read_message(again, payload).kind == LUDA_FRAME_CHALLENGE);
    EXPECT(send(again, proof, bytes, 0) == (ssize_t)bytes);
    EXPECT(read_message(again, payload).kind == LUDA_FRAME_REFUSE && strstr((char *)payload, "does not know the secret"));
    EXPECT(recv(again, payload, 1, 0) <= 0);
    EXPECT(luda_rendezvous_missing(home, NULL, 0) == 2);
    close(again);
    luda__seal_release(seal);
    luda__secret_release(secret);
    luda_rendezvous_release(home);
}

/* --- A rendezvous that is none --- */

typedef struct impostor { int listener; bool echoes; } impostor;

/* Answers a caller with its own words, or with made-up ones. */
static void *pretend(void *opaque)
{
    const impostor *i = opaque;
    uint8_t message[LUDA_GREETING_BYTES];
    int fd = accept(i->listener, NULL, NULL);
    for (int m = 0; m < 2; m++) {
        luda_frame frame = { .kind = m ? LUDA_FRAME_PROOF : LUDA_FRAME_CHALLENGE, .payload = LUDA_NONCE_BYTES };
        size_t bytes = LUDA_FRAME_BYTES + LUDA_NONCE_BYTES;
        EXPECT(recv(fd, message, bytes + !m, MSG_WAITALL) == (ssize_t)bytes + !m);
        luda__frame_write(&frame, message);
        if (!i->echoes)
            memset(message + LUDA_FRAME_BYTES, 7, LUDA_NONCE_BYTES);
        EXPECT(send(fd, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    }
    EXPECT(recv(fd, message, 1, 0) <= 0); /* nothing more is said to it */
    close(fd);
    return NULL;
}

static void test_impostor(bool echoes)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof here;
    impostor i = { socket(AF_INET, SOCK_STREAM, 0), echoes };
    luda_comm_options options = with(SECRET, false, 20);
    luda_comm *comm = NULL;
    pthread_t thread;
    char address[32];
    double start = now();
    EXPECT(bind(i.listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(i.listener, 1) == 0);
    getsockname(i.listener, (struct sockaddr *)&here, &length);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(here.sin_port));
    pthread_create(&thread, NULL, pretend, &i);
    EXPECT_STATUS(LUDA_EPEER, luda_comm_connect(address, "00112233445566778899aabbccddeeff", 0, 2, &options, &comm));
    EXPECT(strstr(luda_last_error(), "does not know the secret") && now() - start < 5 && !comm);
    pthread_join(thread, NULL);
    close(i.listener);
}

/* --- Arguments, and what a secret allows --- */

static void test_arguments(void)
{
    luda_rendezvous *home = NULL;
    luda_comm *comm = NULL;
    luda_comm_options options = with("fifteen bytes !", false, 0);
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new(NULL, NULL, 2, &options, &home));
    EXPECT(strstr(luda_last_error(), "15 bytes") && strstr(luda_last_error(), "urandom"));
    EXPECT(!strstr(luda_last_error(), "fifteen"));
    options = with(NULL, true, 0);
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_connect("127.0.0.1:1", "00112233445566778899aabbccddeeff", 0, 2, &options, &comm));
    EXPECT(strstr(luda_last_error(), "encrypt needs a secret"));
    EXPECT_STATUS(LUDA_ENOTSUP, luda_rendezvous_new("0.0.0.0:0", NULL, 2, NULL, &home));
    EXPECT(strstr(luda_last_error(), "secret=") && strstr(luda_last_error(), "luda run --secret-file"));
    EXPECT(!home && !comm);
    options = with("sixteen bytes !!", false, 0);
    EXPECT_OK(luda_rendezvous_new("0.0.0.0:0", NULL, 2, &options, &home));
    luda_rendezvous_release(home);
}

int main(void)
{
    test_arguments();
    turned_away(SECRET, OTHER, false, "does not know the secret");
    turned_away(SECRET, NULL, false, "has no secret and the session has one");
    turned_away(NULL, SECRET, false, "has a secret and the session has none");
    turned_away(SECRET, SECRET, true, "rank 1 encrypts and rank 0 does not; encrypt must be equal on all ranks");
    for (int i = 0; i < 2; i++) {
        test_parts(i);
        test_repeated_join(i);
        test_impostor(i);
    }
    return summary("collective door");
}

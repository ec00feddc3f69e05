/*
 * Rendezvous and TCP between processes: strangers, wrong and late ranks, ranks that are killed, stopped or exit. The ranks
 * are this program again: `collective_tcp_test rank SCENARIO RANK SIZE ADDRESS SESSION`; a rank's exit status is 0 if all
 * its expectations held.
 */
#include "collective_processes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>

static void sums(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank), *y;
    int size = luda_comm_size(comm);
    for (int i = 0; i < 3; i++) {
        int64_t wrong = 0;
        EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
        for (int64_t e = 0; e < luda_tensor_numel(y); e++)
            wrong += ((float *)luda_tensor_data(y))[e] != (float)(size * (size - 1) / 2 + size * (e % 7));
        EXPECT(wrong == 0);
        luda_tensor_release(y);
    }
    luda_tensor_release(x);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static void killed(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank), *y = NULL;
    struct rusage before, after;
    if (rank == LOST)
        EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == LOST)
        for (int i = 0;; i++) {
            if (i == 3)
                kill(getpid(), SIGKILL);
            EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
            luda_tensor_release(y);
        }
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    /* Later calls fail at once, and nothing spins. */
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(comm, NULL));
    expect_only_blames(comm, LOST);
    getrusage(RUSAGE_SELF, &before);
    pause_ms(300);
    getrusage(RUSAGE_SELF, &after);
    EXPECT(after.ru_utime.tv_sec - before.ru_utime.tv_sec + (after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1e-6 <
           0.1);
    luda_tensor_release(x);
}

/* Killed or stopped from outside, at any moment; the parent knows which. */
static void killed_any(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_EPEER, LOST);
    luda_tensor_release(x);
}

static void stopped(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_DIRECT, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(x);
}

static void stopped_ring(luda_comm *comm, int rank)
{
    luda_tensor *x = big(rank);
    until(comm, x, false, LUDA_ALGORITHM_RING, LUDA_ETIMEOUT, LOST);
    luda_tensor_release(x);
}

/* Leaves without a word, as a script that returned early. */
static void exits(luda_comm *comm, int rank)
{
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == LOST) {
        usleep(300000); /* the others are through as well: a rank lost inside a barrier may fail it */
        _exit(failed != 0);
    }
    EXPECT_STATUS(LUDA_EPEER, luda_comm_barrier(comm, NULL));
    expect_only_blames(comm, LOST);
}

static void busy(luda_comm *comm, int rank)
{
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.4 };
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    if (rank == LOST)
        pause_ms(1000);
    EXPECT_STATUS(LUDA_ETIMEOUT, luda_comm_barrier(comm, &soon));
    expect_only_blames(comm, LOST);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static const scenario scenarios[] = { { "sums", sums },
                  { "killed", killed },
                  { "killed_any", killed_any },
                  { "stopped", stopped },
                  { "stopped_ring", stopped_ring },
                  { "exits", exits },
                  { "busy", busy },
                                       { NULL, NULL } };

/* --- At the door --- */

static int dial(const luda_rendezvous *home)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_port = htons((uint16_t)atoi(strrchr(luda_rendezvous_address(home), ':') + 1));
    EXPECT(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

/* True if the other side closes within two seconds. */
static bool dropped(int fd)
{
    struct timeval patience = { .tv_sec = 2 };
    char bytes[512];
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    do
        n = recv(fd, bytes, sizeof bytes, 0);
    while (n > 0);
    return n == 0 || errno == ECONNRESET;
}

typedef struct applicant {
    const char *address, *session;
    int rank, size, delay_ms;
    double timeout;
    luda_status status;
    luda_comm *comm;
    char text[256];
} applicant;

static void *apply(void *opaque)
{
    applicant *a = opaque;
    luda_comm_options options = { .size = sizeof options, .timeout = a->timeout > 0 ? a->timeout : 10 };
    pause_ms(a->delay_ms);
    a->status = luda_comm_connect(a->address, a->session, a->rank, a->size, &options, &a->comm);
    if (a->status != LUDA_OK)
        snprintf(a->text, sizeof a->text, "%s", luda_last_error());
    return NULL;
}

static void apply_all(applicant *a, int count)
{
    pthread_t threads[8];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, apply, &a[i]);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void test_strangers(void)
{
    static const char web[] = "GET / HTTP/1.0\r\n\r\n", hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    char noise[65536];
    luda_rendezvous *home;
    int slow, fd;
    EXPECT_OK(luda_rendezvous_new("localhost:0", NULL, 3, &home));
    slow = dial(home);
    EXPECT(send(slow, "L", 1, MSG_NOSIGNAL) == 1);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 2654435761u >> 13);
    for (int i = 0; i < 200; i++) {
        fd = dial(home);
        if (i % 4 == 1)
            send(fd, web, sizeof web - 1, MSG_NOSIGNAL);
        if (i % 4 == 2)
            send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        if (i % 4 == 3)
            send(fd, hello, sizeof hello - 1, MSG_NOSIGNAL);
        close(fd);
    }
    fd = dial(home);
    send(fd, noise, sizeof noise, MSG_NOSIGNAL);
    EXPECT(dropped(fd));
    close(fd);
    const char *address = luda_rendezvous_address(home), *session = luda_rendezvous_session(home);
    applicant a[] = {
        { .address = address, .session = session, .rank = 0, .size = 3 },
        { .address = address, .session = session, .rank = 1, .size = 3, .delay_ms = 100 },
        { .address = address, .session = "00112233445566778899aabbccddeeff", .rank = 2, .size = 3, .delay_ms = 200 },
        { .address = address, .session = session, .rank = 1, .size = 3, .delay_ms = 200 },
        { .address = address, .session = session, .rank = 2, .size = 4, .delay_ms = 200 },
        { .address = address, .session = session, .rank = 2, .size = 3, .delay_ms = 500 },
        { .address = address, .session = session, .rank = 2, .size = 3, .delay_ms = 900 },
    };
    apply_all(a, 7);
    EXPECT(a[0].status == LUDA_OK && a[1].status == LUDA_OK && a[5].status == LUDA_OK);
    EXPECT(a[2].status == LUDA_EMISMATCH && strstr(a[2].text, "another session"));
    EXPECT(a[3].status == LUDA_EMISMATCH && strstr(a[3].text, "rank 1 already"));
    EXPECT(a[4].status == LUDA_EMISMATCH && strstr(a[4].text, "expects 4 ranks, the session has 3"));
    EXPECT(a[6].status == LUDA_EMISMATCH && strstr(a[6].text, "complete"));
    EXPECT(luda_rendezvous_missing(home, NULL, 0) == 0);
    for (int i = 0; i < 7; i++)
        luda_comm_release(a[i].comm);
    close(slow);
    luda_rendezvous_release(home);
}

static void test_missing(void)
{
    luda_rendezvous *home, *again;
    int32_t missing[4];
    char address[80], session[40];
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 4, &home));
    snprintf(address, sizeof address, "%s", luda_rendezvous_address(home));
    snprintf(session, sizeof session, "%s", luda_rendezvous_session(home));
    EXPECT(atoi(strrchr(address, ':') + 1) > 0);
    applicant a[] = { { .address = address, .session = session, .rank = 0, .size = 4, .timeout = 0.4 },
                      { .address = address, .session = session, .rank = 2, .size = 4, .timeout = 0.4 } };
    double start = now();
    apply_all(a, 2);
    EXPECT(now() - start < 1);
    for (int i = 0; i < 2; i++) {
        EXPECT(a[i].status == LUDA_ETIMEOUT);
        EXPECT(strstr(a[i].text, "1") && strstr(a[i].text, "3"));
    }
    /* The two have gone again; their places are free. */
    pause_ms(50);
    EXPECT(luda_rendezvous_missing(home, missing, 4) == 4);
    EXPECT_STATUS(LUDA_EIO, luda_rendezvous_new(address, NULL, 2, &again));
    EXPECT(strstr(luda_last_error(), address) && strstr(luda_last_error(), "in use"));
    luda_rendezvous_release(home);
    /* Nobody there; then the server comes later than the ranks, on the port just left. */
    applicant nobody = { .address = address, .session = session, .rank = 0, .size = 2, .timeout = 0.3 };
    apply(&nobody);
    EXPECT(nobody.status == LUDA_ETIMEOUT && strstr(nobody.text, address));
    applicant early[] = { { .address = address, .session = session, .rank = 0, .size = 2 },
                          { .address = address, .session = session, .rank = 1, .size = 2 } };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, apply, &early[i]);
    pause_ms(200);
    EXPECT_OK(luda_rendezvous_new(address, session, 2, &again));
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(early[i].status == LUDA_OK);
        luda_comm_release(early[i].comm);
    }
    luda_rendezvous_release(again);
}

static void test_arguments(void)
{
    luda_rendezvous *home = NULL;
    luda_comm *comm = NULL;
    static const char session[] = "00112233445566778899aabbccddeeff";
    EXPECT_STATUS(LUDA_ENOTSUP, luda_rendezvous_new("0.0.0.0:0", NULL, 2, &home));
    EXPECT(strstr(luda_last_error(), "127.0.0.1"));
    EXPECT_STATUS(LUDA_ENOTSUP, luda_comm_connect("192.0.2.1:5000", session, 0, 2, NULL, &comm));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new("127.0.0.1", NULL, 2, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new("127.0.0.1:70000", NULL, 2, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new(NULL, "1234", 2, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_rendezvous_new(NULL, NULL, 0, &home));
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_connect("127.0.0.1:5000", session, 2, 2, NULL, &comm));
    EXPECT_STATUS(LUDA_EINVAL, luda_comm_connect("127.0.0.1:5000", "xyz", 0, 2, NULL, &comm));
    EXPECT(home == NULL && comm == NULL);
    /* One rank needs nobody. */
    EXPECT_OK(luda_comm_connect("127.0.0.1:1", session, 0, 1, NULL, &comm));
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    luda_comm_release(comm);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 7 && strcmp(argv[1], "rank") == 0)
        return run_as_rank(argv, scenarios);
    setenv("LUDA_LANE", "off", 1);
    test_arguments();
    test_strangers();
    test_missing();
    run_processes("sums", 4, 0, 0);
    run_processes("killed", 4, 0, SIGKILL);
    for (int i = 0; i < 3; i++)
        run_processes("killed_any", 4, 3 + 35 * i, SIGKILL);
    for (int i = 0; i < 3; i++)
        run_processes("stopped", 4, 3 + 35 * i, SIGSTOP);
    run_processes("stopped_ring", 4, 100, SIGSTOP);
    run_processes("exits", 4, 0, 0);
    run_processes("busy", 4, 0, 0);
    return summary("collective tcp");
}

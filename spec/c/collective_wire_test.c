/*
 * Connections between ranks: several for data, one of them reset, a rank that reads nothing, no descriptors left. Ranks
 * are threads of this process, which share its network loop, or this program again: `collective_wire_test rank ADDRESS
 * SESSION` is rank 1 of 2. No lane: everything goes over sockets.
 */
#include "collective_ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- Joining --- */

typedef struct applicant {
    const char *address, *session;
    int rank, size, connections;
    double timeout;
    luda_status status;
    luda_comm *comm;
    char text[256];
} applicant;

static void *apply(void *opaque)
{
    applicant *a = opaque;
    luda_comm_options options = { .size = sizeof options, .timeout = a->timeout, .connections = a->connections };
    a->status = luda_comm_connect(a->address, a->session, a->rank, a->size, &options, &a->comm);
    if (a->status != LUDA_OK)
        snprintf(a->text, sizeof a->text, "%s", luda_last_error());
    return NULL;
}

static void apply_all(applicant *a, int size, const int *connections, double timeout)
{
    luda_rendezvous *home;
    pthread_t threads[MOST];
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, size, NULL, &home));
    for (int r = 0; r < size; r++) {
        a[r] = (applicant){ .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home), .rank = r,
                            .size = size, .connections = connections[r], .timeout = timeout };
        pthread_create(&threads[r], NULL, apply, &a[r]);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    luda_rendezvous_release(home);
}

static void joined(luda_comm **comms, int size, int connections)
{
    const int equal[MOST] = { connections, connections, connections, connections, connections };
    applicant a[MOST];
    apply_all(a, size, equal, 10);
    for (int r = 0; r < size; r++) {
        if (a[r].status != LUDA_OK)
            printf("rank %d: %s\n", r, a[r].text);
        EXPECT(a[r].status == LUDA_OK);
        comms[r] = a[r].comm;
    }
}

static luda_tensor *counted(int64_t n, float first)
{
    luda_tensor *x;
    EXPECT_OK(luda_tensor_new(LUDA_F32, cpu, 1, &n, &x));
    for (int64_t i = 0; i < n; i++)
        ((float *)luda_tensor_data(x))[i] = first + (float)(i % 7);
    return x;
}

/* --- Several connections --- */

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { LONG = 700001 };
#else
enum { LONG = 2500001 }; /* several chunks for each rank */
#endif

static void sums_and_messages(luda_comm *comm, int rank, void *arg)
{
    enum { EACH = 20, TAGS = 3 };
    int size = luda_comm_size(comm), next = (rank + 1) % size, before = (rank + size - 1) % size;
    luda_comm_options tagged = { .size = sizeof tagged };
    luda_tensor *x, *y;
    int64_t wrong = 0;
    /* Messages of one tag arrive in order, long or short, whatever comes between. */
    for (int i = 0; i < EACH; i++)
        for (tagged.tag = 0; tagged.tag < TAGS; tagged.tag++) {
            x = counted(i % 5 == 0 ? 100000 : 3, (float)(100 * i + tagged.tag));
            EXPECT_OK(luda_comm_send(comm, x, next, &tagged));
            luda_tensor_release(x);
        }
    x = counted(LONG, (float)rank);
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    for (int64_t i = 0; i < LONG; i++)
        wrong += ((float *)luda_tensor_data(y))[i] != (float)(size * (size - 1) / 2 + size * (i % 7));
    EXPECT(wrong == 0);
    luda_tensor_release(y);
    luda_tensor_release(x);
    for (tagged.tag = TAGS - 1; tagged.tag >= 0; tagged.tag--)
        for (int i = 0; i < EACH; i++) {
            EXPECT_OK(luda_comm_recv(comm, before, &tagged, &y));
            EXPECT(luda_tensor_numel(y) == (i % 5 == 0 ? 100000 : 3));
            EXPECT(((float *)luda_tensor_data(y))[2] == (float)(100 * i + tagged.tag + 2));
            luda_tensor_release(y);
        }
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static void in_parts(luda_comm *comm, int rank, void *arg)
{
    luda_comm *part;
    EXPECT_OK(luda_comm_split(comm, rank % 2, 0, NULL, &part));
    sums_and_messages(part, luda_comm_rank(part), NULL);
    luda_comm_release(part);
}

static void test_several(void)
{
    luda_comm *comms[MOST];
    for (int connections = 1; connections <= 4; connections += 3) {
        joined(comms, 3, connections);
        run_threads(comms, 3, sums_and_messages, NULL);
    }
    joined(comms, 4, 2);
    run_threads(comms, 4, in_parts, NULL);
}

static void test_disagreement(void)
{
    const int differ[] = { 2, 3 }, wild[] = { 65, -1 };
    applicant a[2];
    int refused;
    apply_all(a, 2, differ, 0.3);
    refused = a[0].status == LUDA_EMISMATCH ? 0 : 1;
    EXPECT(a[refused].status == LUDA_EMISMATCH && strstr(a[refused].text, refused ? "connections=3" : "connections=2"));
    EXPECT(a[1 - refused].status == LUDA_ETIMEOUT && strstr(a[1 - refused].text, "did not join"));
    apply_all(a, 2, wild, 0.3);
    for (int r = 0; r < 2; r++)
        EXPECT(a[r].status == LUDA_EINVAL && strstr(a[r].text, "1 to 64"));
}

/* --- One connection is reset --- */

/* The descriptors of connected sockets, in order; how many. */
static int connections_open(int *fds, int most)
{
    int count = 0;
    for (int fd = 0; fd < 200 && count < most; fd++) {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_family == AF_INET)
            fds[count++] = fd;
    }
    return count;
}

typedef struct reset_plan {
    pthread_barrier_t gate;
    int which;
} reset_plan;

static void until_reset(luda_comm *comm, int rank, void *arg)
{
    reset_plan *plan = arg;
    luda_tensor *x = counted(100, 0);
    luda_comm_options patient = { .size = sizeof patient, .timeout = 10 };
    int32_t who[2];
    double start = now();
    char words[32];
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    pthread_barrier_wait(&plan->gate);
    if (rank == 1) {
        const struct sockaddr nobody = { .sa_family = AF_UNSPEC };
        int fds[16];
        pause_ms(50); /* rank 0 waits by then */
        EXPECT(connections_open(fds, 16) == 6);
        /* Resets it; by the system call, since to ThreadSanitizer it would look as if a descriptor were used and replaced. */
        EXPECT(syscall(SYS_connect, fds[plan->which], &nobody, sizeof nobody) == 0);
        pause_ms(400);
    }
    EXPECT_STATUS(LUDA_EPEER, luda_comm_all_reduce_into(comm, x, LUDA_REDUCE_SUM, &patient));
    EXPECT(now() - start < 5);
    luda_tensor_release(x);
    snprintf(words, sizeof words, "lost rank %d (", 1 - rank);
    EXPECT(strstr(luda_last_error(), words) != NULL);
    EXPECT(luda_comm_culprits(comm, who, 2) == 1 && who[0] == 1 - rank);
    pthread_barrier_wait(&plan->gate);
}

static void test_resets(void)
{
    luda_comm *comms[MOST];
    reset_plan plan;
    pthread_barrier_init(&plan.gate, NULL, 2);
    for (plan.which = 0; plan.which < 6; plan.which++) {
        int fds[16];
        joined(comms, 2, 2);
        run_threads(comms, 2, until_reset, &plan);
        for (int i = 0; i < 100 && connections_open(fds, 16) > 0; i++)
            pause_ms(20);
    }
    pthread_barrier_destroy(&plan.gate);
}

/* --- A rank that reads nothing --- */

enum { MESSAGE = 1 << 18, MOST_SENDS = 400 };

static long resident_kilobytes(void)
{
    long pages = 0, unused;
    FILE *f = fopen("/proc/self/statm", "r");
    EXPECT(f && fscanf(f, "%ld %ld", &unused, &pages) == 2);
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int run_as_reader(char **argv)
{
    applicant a = { .address = argv[2], .session = argv[3], .rank = 1, .size = 2, .connections = 1, .timeout = 20 };
    luda_tensor *x;
    float expected = 0;
    apply(&a);
    EXPECT(a.status == LUDA_OK);
    EXPECT_OK(luda_comm_recv(a.comm, 0, NULL, &x)); /* how many there are to come: sent when this process goes on */
    for (int i = 0; i < (int)((float *)luda_tensor_data(x))[0]; i++) {
        luda_tensor *y;
        EXPECT_OK(luda_comm_recv(a.comm, 0, &(luda_comm_options){ .size = sizeof(luda_comm_options), .tag = 1 }, &y));
        EXPECT(((float *)luda_tensor_data(y))[0] == expected++);
        luda_tensor_release(y);
    }
    EXPECT(expected > 0);
    EXPECT_OK(luda_comm_barrier(a.comm, NULL));
    luda_tensor_release(x);
    luda_comm_release(a.comm);
    return failed != 0;
}

#ifdef __SANITIZE_ADDRESS__ /* keeps what was freed */
enum { MOST_GROWTH = 1 << 30 };
#else
enum { MOST_GROWTH = 100 << 10 }; /* kilobytes */
#endif

static void send_until_full(luda_comm *comm, pid_t reader)
{
    luda_comm_options soon = { .size = sizeof soon, .timeout = 0.3, .tag = 1 };
    luda_status status = LUDA_OK;
    luda_tensor *x = counted(MESSAGE, 0), *count = counted(1, 0);
    long before = resident_kilobytes();
    double start = 0;
    int sent = 0, waited = 0;
    int32_t who[2];
    kill(reader, SIGSTOP);
    waitpid(reader, &waited, WUNTRACED);
    while (status == LUDA_OK && sent < MOST_SENDS) {
        ((float *)luda_tensor_data(x))[0] = (float)sent;
        start = now();
        status = luda_comm_send(comm, x, 1, &soon);
        sent += status == LUDA_OK;
    }
    EXPECT(status == LUDA_ETIMEOUT && now() - start < 2.3);
    EXPECT(strstr(luda_last_error(), "rank 1") && luda_comm_culprits(comm, who, 2) == 1 && who[0] == 1);
    EXPECT(sent >= 64 && sent < MOST_SENDS);
    EXPECT(resident_kilobytes() - before < MOST_GROWTH);
    /* Nothing of the message that failed is on its way: when the reader goes on, all the others arrive. */
    kill(reader, SIGCONT);
    ((float *)luda_tensor_data(count))[0] = (float)sent;
    EXPECT_OK(luda_comm_send(comm, count, 1, NULL));
    EXPECT_OK(luda_comm_barrier(comm, NULL));
    luda_tensor_release(count);
    luda_tensor_release(x);
}

static void test_slow_reader(const char *program)
{
    luda_rendezvous *home;
    int status = -1;
    pid_t reader;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    applicant a = { .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home), .size = 2,
                    .timeout = 20 };
    reader = fork();
    if (reader == 0) {
        execl(program, program, "rank", a.address, a.session, (char *)NULL);
        _exit(127);
    }
    apply(&a);
    EXPECT(a.status == LUDA_OK);
    if (a.comm)
        send_until_full(a.comm, reader);
    waitpid(reader, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    luda_comm_release(a.comm);
    luda_rendezvous_release(home);
}

/* --- No descriptors left --- */

static void without_descriptors(luda_comm *comm, int rank, void *arg)
{
    luda_tensor *x = counted(1001, (float)rank), *y;
    EXPECT_OK(luda_comm_all_reduce(comm, x, LUDA_REDUCE_SUM, NULL, &y));
    EXPECT(((float *)luda_tensor_data(y))[9] == 1 + 2 * (9 % 7));
    luda_tensor_release(y);
    luda_tensor_release(x);
    EXPECT_OK(luda_comm_barrier(comm, NULL));
}

static void test_descriptors(void)
{
    struct rlimit all, none;
    luda_rendezvous *home = NULL;
    luda_comm *comms[MOST];
    joined(comms, 2, 1);
    getrlimit(RLIMIT_NOFILE, &all);
    none = all;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    EXPECT_STATUS(LUDA_EIO, luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    run_threads(comms, 2, without_descriptors, NULL);
    setrlimit(RLIMIT_NOFILE, &all);
}

int main(int argc, char **argv)
{
    setenv("LUDA_LANE", "off", 1);
    if (argc == 4 && strcmp(argv[1], "rank") == 0)
        return run_as_reader(argv);
    test_several();
    test_disagreement();
    test_resets();
    test_slow_reader(argv[0]);
    test_descriptors();
    return summary("collective wire");
}

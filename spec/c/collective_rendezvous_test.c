/* Who meets whom: wrong, late, missing and returning ranks, addresses, ports that are taken, servers that go or come late. */
#include "collective_door.h"

typedef struct meeting { luda_rendezvous *home; const char *address, *session; int size; } meeting;

static meeting meet_at(const char *bind, int size)
{
    meeting m = { .size = size };
    EXPECT_OK(luda_rendezvous_new(bind, NULL, size, NULL, &m.home));
    m.address = luda_rendezvous_address(m.home);
    m.session = luda_rendezvous_session(m.home);
    return m;
}

static applicant rank_of(const meeting *m, int rank)
{
    return (applicant){ .address = m->address, .session = m->session, .rank = rank, .size = m->size };
}

/* Waits until so many are missing. */
static bool missing_becomes(luda_rendezvous *home, int count)
{
    double end = luda__now() + 20;
    while (luda_rendezvous_missing(home, NULL, 0) != count && luda__now() < end)
        pause_ms(2);
    return luda_rendezvous_missing(home, NULL, 0) == count;
}

/* What a rank says first. */
static void send_join(int fd, const meeting *m, uint32_t rank, uint32_t size)
{
    uint8_t bytes[LUDA_FRAME_BYTES + 2] = { 0 };
    luda_frame frame = { .kind = LUDA_FRAME_JOIN, .payload = 2, .slot = 1, .rank = rank, .size = size };
    luda__session_parse(m->session, frame.session);
    luda__frame_write(&frame, bytes);
    EXPECT(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes);
}

/* Must be told at once; the others wait on. */
static void expect_refused(applicant a, const char *words)
{
    apply(&a);
    EXPECT(a.status == LUDA_EMISMATCH && strstr(a.text, words) && a.seconds < 5);
    if (a.status != LUDA_EMISMATCH || !strstr(a.text, words))
        printf("wanted \"%s\", got \"%s\"\n", words, a.text);
}

static void test_wrong_ranks(void)
{
    meeting m = meet_at("localhost:0", 3);
    applicant a[] = { rank_of(&m, 0), rank_of(&m, 1), rank_of(&m, 2) }, stray = a[2], odd = a[2];
    pthread_t threads[3];
    stray.session = "00112233445566778899aabbccddeeff";
    odd.size = 4;
    start_applying(threads, a, 2);
    EXPECT(missing_becomes(m.home, 1));
    expect_refused(stray, "another session");
    expect_refused(a[1], "rank 1 already");
    expect_refused(odd, "expects 4 ranks, the session has 3");
    start_applying(&threads[2], &a[2], 1);
    end_applying(threads, a, 3);
    for (int r = 0; r < 3; r++)
        EXPECT(in_with_sum(&a[r]));
    expect_refused(rank_of(&m, 2), "complete");
    EXPECT(luda_rendezvous_missing(m.home, NULL, 0) == 0);
    luda_rendezvous_release(m.home);
}

/* World 4, of which two call themselves 0 and two 1: the second of each is told, the others wait for the right ones. */
static void test_twice(void)
{
    meeting m = meet_at(NULL, 4);
    applicant a[] = { rank_of(&m, 0), rank_of(&m, 1), rank_of(&m, 2), rank_of(&m, 3) };
    pthread_t threads[4];
    start_applying(threads, a, 2);
    EXPECT(missing_becomes(m.home, 2));
    expect_refused(rank_of(&m, 0), "rank 0 already");
    expect_refused(rank_of(&m, 1), "rank 1 already");
    start_applying(&threads[2], &a[2], 2);
    end_applying(threads, a, 4);
    for (int r = 0; r < 4; r++)
        EXPECT(in_with_sum(&a[r]));
    luda_rendezvous_release(m.home);
}

/* Rank 4 of 4 is wrong before it knocks; a program that knocks all the same is told. */
static void test_out_of_range(void)
{
    meeting m = meet_at(NULL, 4);
    applicant a = rank_of(&m, 4);
    char words[WORDS];
    int fd = dial(port_of(m.home));
    apply(&a);
    EXPECT(a.status == LUDA_EINVAL && strstr(a.text, "rank 4 of 4 ranks"));
    send_join(fd, &m, 4, 4);
    EXPECT(dropped(fd, words) && strstr(words, "rank 4 of 4 ranks"));
    close(fd);
    luda_rendezvous_release(m.home);
}

/* Ranks that came, and a server that waits, know who did not; the places of those who gave up are free again. */
static void test_never(void)
{
    meeting m = meet_at(NULL, 4);
    int32_t missing[4] = { 0 };
    applicant a[] = { rank_of(&m, 0), rank_of(&m, 2) };
    pthread_t threads[2];
    EXPECT(port_of(m.home) > 0);
    for (int i = 0; i < 2; i++)
        a[i].timeout = 0.6;
    start_applying(threads, a, 2);
    EXPECT(missing_becomes(m.home, 2));
    EXPECT(luda_rendezvous_missing(m.home, missing, 4) == 2 && missing[0] == 1 && missing[1] == 3);
    end_applying(threads, a, 2);
    for (int i = 0; i < 2; i++) {
        EXPECT(a[i].status == LUDA_ETIMEOUT && strstr(a[i].text, "1") && strstr(a[i].text, "3 did not join"));
        EXPECT(a[i].seconds < 2.6);
    }
    EXPECT(missing_becomes(m.home, 4));
    luda_rendezvous_release(m.home);
}

/* A rank that joined and died is forgotten, the others hear that it is missing, and it may come again, late. */
static void test_again(void)
{
    meeting m = meet_at(NULL, 2);
    applicant waiting = rank_of(&m, 1), again = rank_of(&m, 0);
    pthread_t threads[2];
    int fd = dial(port_of(m.home));
    send_join(fd, &m, 0, 2);
    EXPECT(missing_becomes(m.home, 1));
    close(fd);
    EXPECT(missing_becomes(m.home, 2));
    again.delay_ms = 300;
    start_applying(&threads[0], &waiting, 1);
    start_applying(&threads[1], &again, 1);
    end_applying(&threads[0], &waiting, 1);
    end_applying(&threads[1], &again, 1);
    EXPECT(in_with_sum(&waiting) && in_with_sum(&again));
    luda_rendezvous_release(m.home);
}

static void test_ports(void)
{
    luda_rendezvous *second = NULL;
    char address[80], session[40];
    double start;
    meeting m = meet_at(NULL, 2);
    snprintf(address, sizeof address, "%s", m.address);
    snprintf(session, sizeof session, "%s", m.session);
    start = luda__now();
    EXPECT_STATUS(LUDA_EIO, luda_rendezvous_new(address, NULL, 2, NULL, &second));
    EXPECT(second == NULL && luda__now() - start < 1);
    EXPECT(strstr(luda_last_error(), address) && strstr(luda_last_error(), "in use"));
    /* The same port after a job on it, three times: its connections are still winding down. */
    for (int job = 0; job < 3; job++) {
        m.address = address;
        m.session = session;
        applicant a[] = { rank_of(&m, 0), rank_of(&m, 1) };
        apply_all(a, 2);
        EXPECT(in_with_sum(&a[0]) && in_with_sum(&a[1]));
        luda_rendezvous_release(m.home);
        EXPECT_OK(luda_rendezvous_new(address, session, 2, NULL, &m.home));
    }
    luda_rendezvous_release(m.home);
    /* Nobody there; then the server comes later than the ranks. */
    applicant nobody = { .address = address, .session = session, .rank = 0, .size = 2, .timeout = 0.3 };
    apply(&nobody);
    EXPECT(nobody.status == LUDA_ETIMEOUT && strstr(nobody.text, address) && nobody.seconds < 2.3);
    applicant early[] = { rank_of(&m, 0), rank_of(&m, 1) };
    pthread_t threads[2];
    start_applying(threads, early, 2);
    pause_ms(200);
    EXPECT_OK(luda_rendezvous_new(address, session, 2, NULL, &second));
    end_applying(threads, early, 2);
    EXPECT(in_with_sum(&early[0]) && in_with_sum(&early[1]));
    luda_rendezvous_release(second);
}

/* Two jobs that say nothing about ports and sessions have different ones, and do not meet where addresses are mixed up. */
static void test_two_jobs(void)
{
    meeting first = meet_at(NULL, 2), second = meet_at(NULL, 2);
    EXPECT(strcmp(first.address, second.address) != 0 && strcmp(first.session, second.session) != 0);
    applicant a[] = { rank_of(&first, 0), rank_of(&second, 0), rank_of(&first, 1), rank_of(&second, 1) }, mixed = a[2];
    pthread_t threads[4];
    mixed.address = second.address;
    start_applying(threads, a, 2);
    expect_refused(mixed, "another session");
    start_applying(&threads[2], &a[2], 2);
    end_applying(threads, a, 4);
    for (int i = 0; i < 4; i++)
        EXPECT(in_with_sum(&a[i]));
    luda_rendezvous_release(first.home);
    luda_rendezvous_release(second.home);
}

static void test_six(void)
{
    luda_rendezvous *home;
    if (luda_rendezvous_new("[::1]:0", NULL, 2, NULL, &home) != LUDA_OK) {
        printf("collective rendezvous: no IPv6 here: %s\n", luda_last_error());
        return;
    }
    meeting m = { home, luda_rendezvous_address(home), luda_rendezvous_session(home), 2 };
    EXPECT(strncmp(m.address, "[::1]:", 6) == 0 && port_of(home) > 0);
    applicant a[] = { rank_of(&m, 0), rank_of(&m, 1) };
    apply_all(a, 2);
    EXPECT(in_with_sum(&a[0]) && in_with_sum(&a[1]));
    luda_rendezvous_release(home);
}

/* A label of more than 63 letters is no name anywhere. */
static void test_no_such_host(void)
{
    char address[80];
    luda_rendezvous *home = NULL;
    applicant a = { .address = address, .session = "00112233445566778899aabbccddeeff", .size = 2 };
    memset(address, 'x', 64);
    snprintf(address + 64, sizeof address - 64, ":4000");
    apply(&a);
    EXPECT(a.status == LUDA_EIO && strstr(a.text, "xxxx") && a.seconds < 10);
    EXPECT_STATUS(LUDA_EIO, luda_rendezvous_new(address, NULL, 2, NULL, &home));
    EXPECT(home == NULL);
}

static void test_closed(void)
{
    meeting m = meet_at(NULL, 2);
    applicant a = rank_of(&m, 0);
    pthread_t thread;
    start_applying(&thread, &a, 1);
    EXPECT(missing_becomes(m.home, 1));
    luda_rendezvous_close(m.home);
    end_applying(&thread, &a, 1);
    EXPECT(a.status == LUDA_EMISMATCH && strstr(a.text, "the rendezvous was closed") && a.seconds < 5);
    luda_rendezvous_release(m.home);
}

/* What answers at an address may be anything: silence, a door that closes at once, a web server. */
enum { SILENT, CLOSING, TALKING };
typedef struct impostor { int listener, manner; _Atomic bool stop; } impostor;

static void *impersonate(void *opaque)
{
    static const char web[] = "HTTP/1.0 400 Bad Request\r\n\r\n";
    impostor *i = opaque;
    while (!i->stop) {
        int fd = accept(i->listener, NULL, NULL);
        if (fd >= 0 && i->manner == TALKING)
            send(fd, web, sizeof web - 1, MSG_NOSIGNAL);
        if (fd >= 0)
            close(fd);
        pause_ms(5);
    }
    return NULL;
}

static void test_impostors(void)
{
    static const struct { luda_status status; const char *words; double least; } wanted[] = {
        [SILENT] = { LUDA_ETIMEOUT, "does not answer", 0.3 },
        [CLOSING] = { LUDA_ETIMEOUT, "closes every connection", 0.3 },
        [TALKING] = { LUDA_EPEER, "something else than a rendezvous", 0 },
    };
    for (int manner = SILENT; manner <= TALKING; manner++) {
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t length = sizeof a;
        impostor i = { .listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), .manner = manner };
        char address[80];
        pthread_t thread;
        EXPECT(bind(i.listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(i.listener, 16) == 0);
        getsockname(i.listener, (struct sockaddr *)&a, &length);
        snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
        applicant rank = { .address = address, .session = "00112233445566778899aabbccddeeff", .size = 2, .timeout = 0.3 };
        if (manner != SILENT)
            pthread_create(&thread, NULL, impersonate, &i);
        apply(&rank);
        EXPECT(rank.status == wanted[manner].status && strstr(rank.text, wanted[manner].words));
        EXPECT(rank.seconds >= wanted[manner].least && rank.seconds < 2.3);
        i.stop = true;
        if (manner != SILENT)
            pthread_join(thread, NULL);
        close(i.listener);
    }
}

int main(void)
{
    test_wrong_ranks();
    test_twice();
    test_out_of_range();
    test_never();
    test_again();
    test_ports();
    test_two_jobs();
    test_six();
    test_no_such_host();
    test_closed();
    test_impostors();
    return summary("collective rendezvous");
}

/* A rank at the rendezvous: it says who it is and where it listens, and learns where the others do, or who is missing. */
#include "join.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RETRY_MS = 50, ANSWER_BYTES = LUDA_ADDRESS_BYTES * LUDA_MAX_RANKS + 1 };

static luda_status reach(luda_joining *j, const luda_address *address)
{
    char text[80];
    for (;;) {
        int fd = luda__socket_connect(address), error = fd < 0 ? errno : 0;
        double left = j->deadline - luda__now();
        if (fd >= 0) {
            struct pollfd p = { .fd = fd, .events = POLLOUT };
            error =
                poll(&p, 1, left > 0 ? (int)fmin(left * 1000 + 1, 5000) : 0) > 0 ? luda__socket_error(fd) : ETIMEDOUT;
        }
        if (error == 0) {
            j->server.fd = fd;
            return LUDA_OK;
        }
        if (fd >= 0)
            close(fd);
        if (left <= 0)
            return luda__fail(LUDA_ETIMEOUT, "connect: no rendezvous at %s after %g s: %s",
                              luda__address_text(address, text, sizeof text), j->timeout, strerror(error));
        usleep(RETRY_MS * 1000);
    }
}

static luda_status read_answer(luda_joining *j, luda_frame *frame, uint8_t payload[ANSWER_BYTES])
{
    enum { FIRST = 4 };
    uint8_t header[LUDA_FRAME_BYTES];
    LUDA_TRY(luda__socket_read(&j->server, header, FIRST, j->deadline));
    j->settled = !luda__frame_starts(header, FIRST);
    if (!j->settled)
        LUDA_TRY(luda__socket_read(&j->server, header + FIRST, sizeof header - FIRST, j->deadline));
    if (j->settled || !luda__frame_read(header, frame) || frame->payload >= ANSWER_BYTES) {
        j->settled = true;
        return luda__fail(LUDA_EPEER,
                          "connect: something else than a rendezvous of this version of LUDA answers at that address");
    }
    LUDA_TRY(luda__socket_read(&j->server, payload, frame->payload, j->deadline));
    j->settled = frame->kind == LUDA_FRAME_MISSING || frame->kind == LUDA_FRAME_READY;
    if (frame->kind != LUDA_FRAME_REFUSE)
        return LUDA_OK;
    luda__tame((char *)payload, (size_t)frame->payload + 1);
    return luda__fail(LUDA_EMISMATCH, "connect: rank %d is turned away: %s", j->rank, (char *)payload);
}

luda_frame luda__introduction(const luda_joining *j, luda_frame_kind kind, int channel)
{
    luda_frame frame = {
        .kind = kind, .rank = (uint32_t)j->rank, .size = (uint32_t)j->size, .step = (uint32_t)channel
    };
    memcpy(frame.session, j->session, LUDA_SESSION_BYTES);
    return frame;
}

static luda_status greet_server(luda_joining *j)
{
    uint8_t message[LUDA_GREETING_BYTES], payload[ANSWER_BYTES];
    size_t bytes = sizeof message;
    luda_greeting greeting;
    luda_frame frame = luda__introduction(j, LUDA_FRAME_KNOCK, 0);
    LUDA_TRY(luda__greeting_call(&greeting, j->origin.secret, &frame, LUDA_ANSWERER_SERVER, message));
    while (bytes > 0) {
        luda_status status;
        LUDA_TRY(luda__socket_write(&j->server, message, bytes, j->deadline));
        status = read_answer(j, &frame, payload);
        if (status != LUDA_OK)
            return status;
        j->settled = luda__greeting_take(&greeting, &frame, payload, message, &bytes, &j->server.seal) == LUDA_GREETED_WRONG;
        if (j->settled)
            return luda__fail(LUDA_EPEER, "connect: what answers at that address does not know the secret");
    }
    return LUDA_OK;
}

static luda_status say_join(luda_joining *j)
{
    uint8_t bytes[LUDA_FRAME_BYTES + 2];
    luda_frame frame = luda__introduction(j, LUDA_FRAME_JOIN, 0);
    luda_address here = { .length = sizeof here.storage };
    getsockname(j->server.fd, (struct sockaddr *)&here.storage, &here.length);
    luda__address_set_port(&here, 0);
    j->origin.here = here;
    if (j->listener < 0)
        LUDA_TRY(luda__listen(&here, LUDA_BACKLOG, &j->listener));
    getsockname(j->listener, (struct sockaddr *)&here.storage, &here.length);
    frame.payload = 2;
    luda__frame_write(&frame, bytes);
    bytes[LUDA_FRAME_BYTES] = (uint8_t)luda__address_port(&here);
    bytes[LUDA_FRAME_BYTES + 1] = (uint8_t)(luda__address_port(&here) >> 8);
    return luda__socket_write(&j->server, bytes, sizeof bytes, j->deadline);
}

luda_status luda__late(const luda_joining *j, const uint8_t *missing, const char *what)
{
    luda_comm_fault fault = { 0 };
    char who[160];
    for (int r = 0; r < j->size; r++)
        if (missing[r / 8] >> (r % 8) & 1)
            luda__blame(&fault, r);
    return luda__fail(LUDA_ETIMEOUT, "connect: timed out after %g s: %s %s", j->timeout,
                      luda__culprits_text(&fault, j->size, who, sizeof who), what);
}

/* An address that ranks on other hosts, or strangers, would understand otherwise. */
static luda_status check_address(const luda_joining *j, int rank)
{
    char text[80];
    if (!j->origin.secret)
        return luda__address_check(&j->table[rank], "connect");
    if (luda__address_is_loopback(&j->table[rank]) == luda__address_is_loopback(&j->origin.here))
        return LUDA_OK;
    return luda__fail(LUDA_EMISMATCH,
                      "connect: rank %d joined from %s, which the others cannot reach; all ranks must use the rendezvous's "
                      "address in the network, or all its loopback address",
                      luda__address_is_loopback(&j->table[rank]) ? rank : j->rank,
                      luda__address_text(luda__address_is_loopback(&j->table[rank]) ? &j->table[rank] : &j->origin.here,
                                         text, sizeof text));
}

static luda_status wait_for_all(luda_joining *j)
{
    uint8_t payload[ANSWER_BYTES], missing[LUDA_MAX_RANKS / 8] = { 0 };
    luda_frame frame;
    for (;;) {
        luda_status status = luda__now() < j->deadline ? read_answer(j, &frame, payload) : LUDA_ETIMEOUT;
        if (status == LUDA_ETIMEOUT)
            return luda__late(j, missing, "did not join");
        if (status != LUDA_OK)
            return status;
        if (frame.kind == LUDA_FRAME_MISSING && frame.payload == sizeof missing)
            memcpy(missing, payload, sizeof missing);
        if (frame.kind == LUDA_FRAME_READY && frame.payload == (uint64_t)j->size * LUDA_ADDRESS_BYTES)
            break;
    }
    for (int r = 0; r < j->size; r++) {
        if (!luda__address_read(payload + r * LUDA_ADDRESS_BYTES, &j->table[r]))
            return luda__fail(LUDA_ECORRUPT, "connect: the rendezvous sent no address of rank %d", r);
        LUDA_TRY(check_address(j, r));
    }
    return LUDA_OK;
}

/* A rendezvous in a crowd may take a rank for a stranger and close before its first answer: the rank comes again. */
luda_status luda__meet(luda_joining *j, const luda_address *address)
{
    char text[80];
    for (int closed = 0;; closed++) {
        luda_status status;
        LUDA_TRY(reach(j, address));
        status = j->origin.secret ? greet_server(j) : LUDA_OK;
        if (status == LUDA_OK)
            status = say_join(j);
        if (status == LUDA_OK)
            status = wait_for_all(j);
        if (j->settled || (status != LUDA_EPEER && status != LUDA_ETIMEOUT))
            return status;
        if (luda__now() >= j->deadline)
            return luda__fail(LUDA_ETIMEOUT, "connect: timed out after %g s: the rendezvous at %s does not answer%s",
                              j->timeout, luda__address_text(address, text, sizeof text),
                              closed ? "; it closes every connection" : "");
        luda__disconnect(&j->server);
        usleep(RETRY_MS * 1000);
    }
}

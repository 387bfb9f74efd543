/* The requests of one connection. The requested bytes that have not arrived are about twice the bytes
 * that arrive in the time of the quickest answer. */
#include "lane.h"

static void was_asked(Lane *lane, Unit *unit, int64_t number) {
  __atomic_store_n(&unit->state, ASKED, __ATOMIC_RELEASE);
  unit->lane = lane->number;
  lane->sent[number] = now_ns();
  lane->unanswered++;
  lane->asked += unit->expected;
}

int ask_next_page(Lane *lane, Unit *unit, int64_t number) {
  struct __attribute__((packed)) {
    int32_t length;
    int16_t op;
    int64_t id, cursor;
  } request = {18, (int16_t)lane->landing->next_op, lane->first_id + number, unit->cursor};
  was_asked(lane, unit, number);
  return put_out(lane, &request, sizeof request);
}

int has_room(const Lane *lane, int64_t bytes) {
  return !lane->unanswered || lane->asked + bytes <= lane->window;
}

/* Whether rows of a unit from number `done` on may be requested: they will have a place soon. */
int is_near(const Lane *lane, const Unit *unit, int64_t done) {
  const Landing *landing = lane->landing;
  if (unit->base < 0) return 1; /* its answer is kept; the window limits such answers */
  int64_t first = landing->places || landing->keys ? unit->first : unit->base + done;
  return first < open_end(landing, lane->window);
}

/* Sends requests while the window has room; first for cursors whose next page has to be requested. */
int refill(Lane *lane) {
  Landing *landing = lane->landing;
  if (lane->asked > lane->window / 4 * 3 && lane->unanswered) return flush(lane);
  while (lane->oldest < lane->next && landing->unit[lane->unit[lane->oldest]].state == ENDED)
    lane->oldest++;
  int64_t half = lane->open - lane->unanswered;
  for (int64_t i = lane->oldest; half > 0 && i < lane->next; i++) {
    Unit *unit = landing->unit + lane->unit[i];
    if (unit->state != HALF) continue;
    half--;
    if (!is_near(lane, unit, unit->done) || !has_room(lane, unit->expected)) continue;
    int found = ask_next_page(lane, unit, lane->unit[i]);
    if (found != GOES_ON) return found;
  }
  while (lane->next < lane->units && lane->cursors < lane->most_cursors) {
    int64_t number = lane->unit[lane->next];
    Unit *unit = landing->unit + number;
    if (!is_near(lane, unit, 0) || !has_room(lane, unit->expected)) break;
    const int64_t *at = (const int64_t *)lane->frame_at_view.buf;
    int found = put_out(lane, (const uint8_t *)lane->frames_view.buf + at[number],
                        at[number + 1] - at[number]);
    if (found != GOES_ON) return found;
    was_asked(lane, unit, number);
    lane->open++;
    lane->cursors += has_cursor(lane, unit);
    lane->next++;
  }
  return flush(lane);
}

/* Sets the window from the best rate and the quickest answer. */
void measure(Lane *lane, int64_t number, int64_t bytes) {
  int64_t now = now_ns(), sent = lane->sent[number];
  double delay = (double)(now - sent) * 1e-9;
  if (delay < lane->delay) lane->delay = delay;
  lane->round_bytes += bytes;
  if (sent < lane->round_start) return;
  /* An answer that was requested after the last round ended completes a round. */
  double seconds = (double)(now - lane->round_end) * 1e-9;
  if (seconds > 1e-4) {
    double rate = (double)lane->round_bytes / seconds;
    lane->rate = rate > lane->rate ? rate : lane->rate * 0.9 + rate * 0.1;
  }
  lane->round_start = lane->round_end = now;
  lane->round_bytes = 0;
  int64_t window = lane->least_window + (int64_t)(2 * lane->rate * lane->delay);
  if (window > 2 * lane->window) window = 2 * lane->window;
  if (window > lane->most_window) window = lane->most_window;
  lane->window = window;
}

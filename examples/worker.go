// A worker for two queues, by priority. Retries, backoff, dead letters, recovery of killed workers are the server's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// Your work. This one takes as long and fails as often as the message asks.
func handle(payload string, attempts int64) (err error) {
	order := map[string]int64{}
	if err = json.Unmarshal([]byte(payload), &order); err == nil && attempts <= order["fails"] {
		err = errors.New("asked to fail")
	}
	time.Sleep(time.Duration(order["work_ms"]) * time.Millisecond)
	return err
}

func main() { // ends with an error when the server is away; the read timeout must be longer than BLOCK
	ctx, r := context.Background(), redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR"), ReadTimeout: 10 * time.Second})
	taken, err := []any{}, error(nil)
	for err == nil || err == redis.Nil { // Nil: no message in these two seconds
		taken, err = r.Do(ctx, "RMQ.RESERVE", "app", 10000, "BLOCK", 2000, "FROM", "urgent", "orders").Slice()
		for _, m := range taken {
			m := m.([]any) // id, payload, receipt, attempts, queue
			if failed := handle(m[1].(string), m[3].(int64)); failed != nil {
				err = r.Do(ctx, "RMQ.NACK", "app", m[0], m[2], "ERROR", failed.Error()).Err()
			} else {
				err = r.Do(ctx, "RMQ.ACK", "app", m[0], m[2]).Err()
			}
		}
	}
	log.Fatal(err)
}

// Every job of the engine from its arrival to its last notification: which resources it holds,
// whether it decodes, and how it ends. StepEngine decides what a step does; this class keeps the
// jobs and the resources consistent. Used by the stepping thread only.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/clock.h"
#include "engine/encoder_runner.h"
#include "engine/job.h"
#include "engine/kv_pool.h"
#include "engine/output_queue.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"

namespace quintet {

class JobTable {
 public:
  // `requests`, `encoder` and `model` must outlive this object.
  JobTable(const Capacity& capacity, RequestTable* requests, EncoderRunner* encoder, Model* model,
           Clock clock);
  ~JobTable();  // finishes every job, UNAVAILABLE

  size_t size() const { return jobs_.size(); }
  Job* Find(RequestId id) const;  // null: unknown
  int64_t used_pages() const { return pool_.used_pages(); }
  // Running jobs that decode, in the order in which they were admitted.
  const std::vector<Job*>& decoding() const { return decoding_; }

  // TakeArrivals moves submitted jobs to the scheduler's queue. For each it calls `reserve(n)`, in
  // which the caller reserves its own lists for n jobs, the new one included; if `reserve` throws
  // std::bad_alloc, only the new job fails. FinishCancelled and FinishExpired finish cancelled and
  // expired jobs.
  void TakeArrivals(absl::FunctionRef<void(size_t jobs)> reserve);
  void FinishCancelled();
  void FinishExpired(int64_t now_us);

  // The functions below admit and start jobs.
  int64_t waiting() const { return scheduler_.waiting(); }
  // Returns the resources that are free now: KV cache pages, and the number of further sequences
  // that the engine can run. The caller sets encode_tokens, the third field of AdmissionBudget.
  AdmissionBudget FreeBudget() const;
  // Moves jobs from the scheduler's queue to the end of `admitted`, in the scheduler's order of
  // admission, until the next job does not fit the rest of `budget`, or needs an adapter slot while
  // running jobs use all of them for other adapters. Puts the adapters of the admitted jobs into
  // slots. The caller must then call Start or Finish for each of these jobs.
  void Admit(int64_t now_us, const AdmissionBudget& budget, std::vector<Job*>* admitted);
  // Reserves KV cache pages for `jobs`, counts their sequences as running, and calls their sinks'
  // OnStart. If an allocation for a job fails, sets its out_of_memory; the caller then finishes it.
  void Start(std::span<Job* const> jobs, int64_t now_us);
  // Adds a job to the list of jobs that decode. It decodes from the next step on.
  void StartDecoding(Job* job) { decoding_.push_back(job); }

  // Returns the priorities of the work that competes with decoding. `waiting` is the priority of
  // the next queued request, if this request waits for pages, sequences or an adapter slot.
  // `encoding` is the highest priority of the jobs in the encoder and of the next queued request,
  // if this request waits only for the encoder.
  PriorityPressure CurrentPressure() const;

  // QueueTokens queues the tokens that a streaming job got in this step. QueueDone queues the
  // results of jobs that have finished decoding, and releases their resources at once. SendOutputs
  // passes everything queued to the sinks.
  void QueueTokens(Job* job) { outputs_.AddTokens(job); }
  void QueueDone(std::span<Job* const> jobs);
  void SendOutputs();

  // Ends a job now: releases its resources, removes it from every list, calls OnDone.
  void Finish(Job* job, JobState state, const absl::Status& status);
  // Finishes a job after a failed allocation.
  void FinishOutOfMemory(Job* job) { Finish(job, JobState::kFailed, out_of_memory_); }
  // Finishes those decoding jobs that are marked out_of_memory.
  void FinishOutOfMemory();
  // Called when the device has failed: ends running jobs with `status`, queued ones UNAVAILABLE.
  void FailAll(const absl::Status& status);

 private:
  bool Accept(std::unique_ptr<Job>* job, absl::FunctionRef<void(size_t jobs)> reserve);
  // Moves the job to its final `state` and removes it from the scheduler's queue or, if it has
  // started, from the lists of running jobs.
  std::unique_ptr<Job> Detach(Job* job, JobState state);
  // Removes the job from the table. If the job was started, releases its KV cache pages and its
  // adapter slot, and no longer counts its sequences as running.
  std::unique_ptr<Job> Remove(Job* job, bool started);
  bool TakeAdapterSlot(Job* job);
  void ReserveFor(Job* job, int64_t now_us);
  void NotifyDone(Job* job);
  void Notify(Job* job, bool was_queued, const absl::Status& status);

  const Capacity capacity_;
  RequestTable* const requests_;
  EncoderRunner* const encoder_;
  AdapterSlots* const adapters_;  // null: the model was loaded without adapters
  const Clock clock_;

  // The error statuses of finished jobs. They are made in advance, because making a status
  // allocates memory, which may be short when a job fails.
  const absl::Status out_of_memory_;
  const absl::Status expired_in_queue_;
  const absl::Status expired_running_;
  const absl::Status device_failed_;

  ThreadPool* const threads_;
  KvPool pool_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<Job>> jobs_;
  std::vector<Job*> decoding_;  // jobs that decode, in order of admission
  OutputQueue outputs_;
  int64_t reserved_sequences_ = 0;  // sequences of all started jobs
  // No job has a deadline before this time. Steps look at every job (there may be thousands) for
  // expired ones only after this time has passed.
  int64_t next_deadline_us_ = std::numeric_limits<int64_t>::max();

  // Lists that are used within one step. Their memory is reserved for all jobs, so that steps do
  // not allocate.
  std::vector<std::unique_ptr<Job>> arrivals_;
  std::vector<RequestId> admitted_ids_;
  std::vector<Job*> finishing_;
};

}  // namespace quintet

//! Every way the filter can do less than route by a model, by name.
//!
//! A fallback that nobody sees is how a router quietly becomes round-robin. So each has one value here,
//! one counter (`foretoken_fallback_total` with label `reason`), one row in `docs/fallbacks.md`.

/// Which rung of the ladder chose the order of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// A trained model's predictions.
    Model,
    /// The analytic prior.
    Prior,
    /// Fewest tokens in flight: predictions were not finite.
    LeastTokens,
    /// Envoy's own load-balancing policy: the filter set no pick.
    Envoy,
}

impl Rung {
    /// The name used in metrics, samples and the explain header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Prior => "prior",
            Self::LeastTokens => "least_tokens",
            Self::Envoy => "envoy",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Why a request was not routed by a model, or not among the pods that it should be.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant,)+ }

        impl Reason {
            /// All reasons, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label value in metrics and the explain header.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

reasons! {
    /// No model has been configured yet: the prior routes.
    NoModel = "no_model",
    /// The model returned a value that is not finite or not positive: the prior routes.
    ModelOutput = "model_output",
    /// The prior was not finite either: the fewest tokens in flight route.
    PriorOutput = "prior_output",
    /// The path is not one that the filter reads.
    UnknownPath = "unknown_path",
    /// The method is not POST.
    Method = "method",
    /// The request has no body.
    NoBody = "no_body",
    /// The body is longer than `request.max_body_bytes`.
    BodyTooLarge = "body_too_large",
    /// The body is not JSON.
    BodyNotJson = "body_not_json",
    /// The body is JSON but not a request of this API.
    BodyNotRequest = "body_not_request",
    /// The body arrived with a content-encoding that the filter does not read.
    BodyEncoded = "body_encoded",
    /// No candidate pod is known.
    NoCandidates = "no_candidates",
    /// No candidate is healthy: all pods stay candidates.
    NoneHealthy = "none_healthy",
    /// No pod lists the model that was asked for: all pods stay candidates.
    ModelNotServed = "model_not_served",
    /// A call into the host failed.
    HostCall = "host_call",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_metric_label() {
        let mut seen = std::collections::HashSet::new();
        for reason in Reason::ALL {
            assert!(seen.insert(reason.name()));
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        }
    }
}
